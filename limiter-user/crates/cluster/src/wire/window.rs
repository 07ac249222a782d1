//! Which frames of a sender have come.

/// Words of 64 frames.
/// Whole words are cleared and nothing is shifted, as in RFC 6479: a jump costs no more than a step.
const WORDS: usize = 32;

/// How far behind the latest frame one may be and still be told from one that has come: 2,048 less the
/// word that is being filled.
/// Two hosts with 10,000 sources send each other some 500 frames a second: so a frame may be 4 s late.
pub const WIDTH: u64 = (WORDS as u64 - 1) * 64;

/// The numbers of the latest frames that have come, a bit for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    /// One above the highest.
    end: u64,
    words: [u64; WORDS],
}

impl Window {
    fn place(number: u64) -> (usize, u64) {
        ((number / 64) as usize % WORDS, 1 << (number % 64))
    }

    /// Whether it has not come yet, as far as is known: what is too far behind counts as come.
    pub(super) fn is_new(&self, number: u64) -> bool {
        if number >= self.end {
            return true;
        }
        let (word, bit) = Self::place(number);
        // The word that is being filled was that of the numbers just beyond WIDTH: of those nothing is known.
        self.end - number <= WIDTH && self.words[word] & bit == 0
    }

    /// Notes that it has come. It has to be new.
    pub(super) fn note(&mut self, number: u64) {
        if number >= self.end {
            // The words between are of numbers that are too far behind now.
            let last = if self.end == 0 { None } else { Some((self.end - 1) / 64) };
            // Each word once at most: a number far ahead must not cost a long loop.
            let steps = last.map_or(WORDS as u64, |last| (number / 64 - last).min(WORDS as u64));
            for step in 0..steps {
                self.words[((number / 64).wrapping_sub(step)) as usize % WORDS] = 0;
            }
            self.end = number + 1;
        }
        let (word, bit) = Self::place(number);
        self.words[word] |= bit;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nothing_is_new_twice_and_what_is_near_is_new_once(
            start in prop_oneof![Just(0_u64), 0_u64..5000, 0..super::super::MAX_NUMBER / 2],
            steps in vec((0_u64..40_u64, prop_oneof![4 => 0_u64..100, 1 => 0_u64..3000]), 1..600),
        ) {
            let (mut window, mut come) = (Window::default(), BTreeSet::new());
            let mut latest = start;
            for (ahead, back) in steps {
                latest += ahead;
                let number = latest.saturating_sub(back);
                let highest = come.last().copied();
                let near = highest.is_none_or(|highest| number + WIDTH > highest);
                prop_assert_eq!(window.is_new(number), near && !come.contains(&number), "{}", number);
                if window.is_new(number) {
                    window.note(number);
                    come.insert(number);
                    prop_assert!(!window.is_new(number));
                }
            }
        }
    }

    #[test]
    fn a_leap_forgets_all() {
        let mut window = Window::default();
        for number in 0..3000 {
            window.note(number);
        }
        window.note(super::super::MAX_NUMBER);
        assert!(!window.is_new(2999) && !window.is_new(super::super::MAX_NUMBER));
        assert!(window.is_new(super::super::MAX_NUMBER - WIDTH + 1));
        assert!(!window.is_new(super::super::MAX_NUMBER - WIDTH));
    }
}
