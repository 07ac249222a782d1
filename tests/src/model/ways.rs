//! What may become of a packet that is judged by several limits one after the other.

/// `pass` or `drop`, and why.
pub type Verdict = (&'static str, &'static str);

/// A limit that judges a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// Whether it may deny the packet, and whether it may admit it.
    pub(super) may: [bool; 2],
    /// Why the packet is dropped then.
    pub(super) over: &'static str,
    /// Whether it is.
    pub(super) enforce: bool,
}

/// One of the ways that a packet may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// Where it ends.
    pub(super) verdict: Verdict,
    /// How many limits it has met, and which of them have admitted it, from bit 0 on.
    met: usize,
    admitted: u32,
}

impl Way {
    /// Whether a limit has admitted the packet; `None` if the packet did not come to it.
    pub(super) fn admitted(&self, step: usize) -> Option<bool> {
        (step < self.met).then_some(self.admitted >> step & 1 != 0)
    }
}

/// All ways of a packet that passes for `reason` unless one of `steps` says otherwise.
pub(super) fn ways(reason: &'static str, steps: &[Step]) -> Vec<Way> {
    let mut open = vec![Way { verdict: ("pass", reason), met: 0, admitted: 0 }];
    let mut ended = Vec::new();
    for step in steps {
        for way in std::mem::take(&mut open) {
            let met = way.met + 1;
            if step.may[1] {
                open.push(Way { met, admitted: way.admitted | 1 << way.met, ..way });
            }
            if step.may[0] && step.enforce {
                ended.push(Way { met, verdict: ("drop", step.over), ..way });
            } else if step.may[0] {
                open.push(Way { met, verdict: ("pass", "would_drop"), ..way });
            }
        }
    }
    ended.append(&mut open);
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_that_is_dropped_goes_no_further() {
        let sure = |admits: bool, over| Step { may: [!admits, admits], over, enforce: true };
        let steps = [sure(true, "a"), sure(false, "b"), sure(false, "c")];
        let all = ways("conforming", &steps);
        assert_eq!((all.len(), all[0].verdict), (1, ("drop", "b")));
        assert_eq!([0, 1, 2].map(|step| all[0].admitted(step)), [Some(true), Some(false), None]);
        let observed = [Step { enforce: false, ..steps[1] }, Step { may: [true; 2], ..steps[0] }];
        let verdicts: Vec<_> =
            ways("below_gate", &observed).iter().map(|way| way.verdict).collect();
        assert_eq!(verdicts, [("drop", "a"), ("pass", "would_drop")]);
    }
}
