//! Reading and writing of bytes that others sent.

/// Bytes that do not say what they should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed")]
pub struct Malformed;

/// Reads from the front. Nothing that it does can panic, and it allocates nothing.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// From the first byte on.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// What has not been read.
    pub const fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// Whether everything has been read.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// So many bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        // Checked: `count` may come from a peer's bytes, and an index beyond the end would stop the daemon.
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    /// `N` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// A byte.
    ///
    /// # Errors
    /// If there is none.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Two bytes, the most significant one first.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    /// Four bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// A number of 1 to 10 bytes, seven bits in each, the least significant ones first.
    ///
    /// # Errors
    /// If it does not end, or is above `u64::MAX`.
    pub fn number(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        // Ten bytes and no more: a run of set top bits must not keep the reader busy.
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            // Of the tenth byte 64 bits have room for one bit: more would be lost in the shift.
            if shift == 63 && bits > 1 {
                return Err(Malformed);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    /// A number of at most 32 bits.
    ///
    /// # Errors
    /// If it is no number, or a larger one.
    pub fn small(&mut self) -> Result<u32, Malformed> {
        // Refused, not cut: the number of a grant cut to 32 bits would be that of another grant (I5).
        self.number()?.try_into().map_err(|_| Malformed)
    }

    /// Text of at most so many bytes, its length before it.
    ///
    /// # Errors
    /// If it is longer or not UTF-8.
    pub fn text(&mut self, longest: usize) -> Result<&'a str, Malformed> {
        let length = usize::from(self.u8()?);
        // Names are kept for thousands of members: one faulty member must not make all of them long.
        if length > longest {
            return Err(Malformed);
        }
        str::from_utf8(self.take(length)?).map_err(|_| Malformed)
    }
}

/// Writes a number as [`Reader::number`] reads it.
pub fn put_number(to: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// Writes text as [`Reader::text`] reads it, at most 255 bytes of it.
pub fn put_text(to: &mut Vec<u8>, text: &str) {
    // At the end of a character: for half of one the receiver would refuse the whole frame.
    let bytes = &text.as_bytes()[..text.floor_char_boundary(255)];
    to.push(bytes.len() as u8);
    to.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_that_do_not_end_or_fit_are_refused() {
        for wrong in [&[0x80][..], &[], &[0xff; 10], &[0xff; 11], &[0x80; 12]] {
            assert_eq!(Reader::new(wrong).number(), Err(Malformed), "{wrong:?}");
        }
        let mut bytes = Vec::new();
        put_number(&mut bytes, 1 << 32);
        assert_eq!(Reader::new(&bytes).small(), Err(Malformed));
        assert_eq!(Reader::new(&[3, b'a', b'b']).text(9), Err(Malformed));
        assert_eq!(Reader::new(&[2, b'a', 0xff]).text(9), Err(Malformed));
        assert_eq!(Reader::new(&[2, b'a', b'b']).text(1), Err(Malformed));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(value: u64, text in "\\PC{0,100}") {
            let mut bytes = Vec::new();
            put_number(&mut bytes, value);
            put_text(&mut bytes, &text);
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.number(), Ok(value));
            let read = reader.text(255).unwrap();
            prop_assert!(text.starts_with(read) && (read.len() == text.len() || read.len() > 250));
            prop_assert!(reader.is_empty());
        }
    }
}
