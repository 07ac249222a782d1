//! The protocol of Redis, RESP 2: commands in, replies out.
//!
//! A parser of our own. Those that there are build a tree of values, and descend into as deep a one as a client sends. A
//! command is one array of texts, and needs neither.

use std::ops::Range;

/// The most texts of a command.
const MAX_ARGUMENTS: usize = 64;

/// The longest text of a command, bytes.
const MAX_TEXT: usize = 8 * 1024;

/// The longest command without lengths, bytes.
const MAX_INLINE: usize = 4 * 1024;

/// The most bytes that may be read before there is a command among them.
pub(super) const MAX_COMMAND: usize = 64 * 1024;

/// The longest line that has a number, bytes.
const MAX_NUMBER: usize = 16;

/// What a client has sent that is no command. Nothing after it can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProtocolError {
    #[error("invalid multibulk length: a command has {MAX_ARGUMENTS} texts at most")]
    Count,
    #[error("invalid bulk length: a text has {MAX_TEXT} bytes at most")]
    Length,
    #[error("expected '$'")]
    Text,
    #[error("expected CRLF after a text")]
    End,
    #[error("too big inline request")]
    Inline,
}

/// A line, and where the next one begins; `None` if it is not whole yet.
fn line(input: &[u8], at: usize, most: usize) -> Result<Option<(&[u8], usize)>, ()> {
    let rest = &input[at..];
    let window = &rest[..rest.len().min(most)];
    match window.iter().position(|&byte| byte == b'\n') {
        Some(end) => {
            let line = &rest[..end];
            Ok(Some((line.strip_suffix(b"\r").unwrap_or(line), at + end + 1)))
        }
        None if window.len() == most => Err(()),
        None => Ok(None),
    }
}

/// The number that follows the first byte of a line.
fn number(line: &[u8]) -> Option<i64> {
    std::str::from_utf8(line.get(1..)?).ok()?.parse().ok()
}

/// Where the texts of the first command in `input` are, and how many bytes it has; `None` if it is not whole yet. A command
/// may be empty.
pub(super) fn command(
    input: &[u8],
    texts: &mut Vec<Range<usize>>,
) -> Result<Option<usize>, ProtocolError> {
    texts.clear();
    if input.first().is_some_and(|&first| first != b'*') {
        return inline(input, texts);
    }
    let count = line(input, 0, MAX_NUMBER).map_err(|()| ProtocolError::Count)?;
    let Some((count, mut at)) = count else { return Ok(None) };
    let count = number(count).ok_or(ProtocolError::Count)?;
    // Redis takes those below 0 for an empty command.
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    if count > MAX_ARGUMENTS {
        return Err(ProtocolError::Count);
    }
    for _ in 0..count {
        if input.get(at).is_some_and(|&first| first != b'$') {
            return Err(ProtocolError::Text);
        }
        let length = line(input, at, MAX_NUMBER).map_err(|()| ProtocolError::Length)?;
        let Some((length, start)) = length else { return Ok(None) };
        let length = number(length).and_then(|length| usize::try_from(length).ok());
        let length = length.filter(|&length| length <= MAX_TEXT).ok_or(ProtocolError::Length)?;
        let end = start + length;
        match input.get(end..end + 2) {
            None => return Ok(None),
            Some(b"\r\n") => {}
            Some(_) => return Err(ProtocolError::End),
        }
        texts.push(start..end);
        at = end + 2;
    }
    Ok(Some(at))
}

/// A command as somebody types it: texts with spaces between them.
fn inline(input: &[u8], texts: &mut Vec<Range<usize>>) -> Result<Option<usize>, ProtocolError> {
    let found = line(input, 0, MAX_INLINE).map_err(|()| ProtocolError::Inline)?;
    let Some((line, used)) = found else { return Ok(None) };
    let mut at = 0;
    for text in line.split(u8::is_ascii_whitespace) {
        if !text.is_empty() {
            if texts.len() == MAX_ARGUMENTS {
                return Err(ProtocolError::Inline);
            }
            texts.push(at..at + text.len());
        }
        at += text.len() + 1;
    }
    Ok(Some(used))
}

/// Appends a number.
pub(super) fn integer(out: &mut Vec<u8>, value: i64) {
    out.push(b':');
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends the head of an array of so many.
pub(super) fn array(out: &mut Vec<u8>, count: usize) {
    out.push(b'*');
    out.extend_from_slice(itoa::Buffer::new().format(count).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends a text of any bytes.
pub(super) fn text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'$');
    out.extend_from_slice(itoa::Buffer::new().format(text.len()).as_bytes());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// Appends a word: that of a success.
pub(super) fn simple(out: &mut Vec<u8>, word: &str) {
    out.push(b'+');
    out.extend_from_slice(word.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends an error. It begins with its kind, in capitals.
pub(super) fn error(out: &mut Vec<u8>, message: &str) {
    out.push(b'-');
    // A line ends an error: what a client has sent must not.
    out.extend(message.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Parsed<'a> = Option<(Vec<&'a [u8]>, usize)>;

    /// The texts of the first command, and the bytes that it has.
    fn parse(input: &[u8]) -> Result<Parsed<'_>, ProtocolError> {
        let mut texts = Vec::new();
        let used = command(input, &mut texts)?;
        Ok(used.map(|used| (texts.into_iter().map(|text| &input[text]).collect(), used)))
    }

    #[test]
    fn commands_are_arrays_of_texts_or_lines() {
        let array = b"*2\r\n$4\r\nPING\r\n$2\r\n\r\n\r\nPING";
        assert_eq!(parse(array), Ok(Some((vec![&b"PING"[..], b"\r\n"], 22))));
        assert_eq!(parse(b" ping \t a\r\nrest"), Ok(Some((vec![&b"ping"[..], b"a"], 11))));
        assert_eq!(parse(b"*0\r\n"), Ok(Some((vec![], 4))));
        assert_eq!(parse(b"*-1\r\n"), Ok(Some((vec![], 5))));
        assert_eq!(parse(b"\r\n"), Ok(Some((vec![], 2))));
        for end in 0..22 {
            assert_eq!(parse(&array[..end]), Ok(None), "{end}");
        }
    }

    #[test]
    fn what_has_no_bounds_is_refused() {
        let long = [b"$" as &[u8], &[b'1'; 40]].concat();
        for (input, error) in [
            (&b"*65\r\n"[..], ProtocolError::Count),
            (b"*x\r\n", ProtocolError::Count),
            (b"*99999999999999999999\r\n", ProtocolError::Count),
            (b"*1\r\n:1\r\n", ProtocolError::Text),
            (b"*1\r\n$8193\r\n", ProtocolError::Length),
            (b"*1\r\n$-1\r\n", ProtocolError::Length),
            (&[b"*1\r\n", &*long].concat(), ProtocolError::Length),
            (b"*1\r\n$1\r\nabc", ProtocolError::End),
            (&[b'a'; MAX_INLINE], ProtocolError::Inline),
            (&b"a ".repeat(65), ProtocolError::Inline),
        ] {
            let input = [input, b"\r\n"].concat();
            assert_eq!(parse(&input), Err(error), "{}", String::from_utf8_lossy(&input));
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..20)) {
            let mut input = Vec::new();
            array(&mut input, texts.len());
            texts.iter().for_each(|each| text(&mut input, each));
            let length = input.len();
            input.extend_from_slice(b"*1\r\n");
            let expected: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(parse(&input), Ok(Some((expected, length))));
        }

        #[test]
        fn any_bytes_are_a_command_or_wait_for_more_or_are_refused(input in prop::collection::vec(any::<u8>(), 0..300)) {
            for head in [&b""[..], b"*", b"*2\r\n$"] {
                let input = [head, &input].concat();
                if let Ok(Some((texts, used))) = parse(&input) {
                    prop_assert!(used <= input.len() && texts.len() <= MAX_ARGUMENTS);
                }
            }
        }
    }
}
