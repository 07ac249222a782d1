//! What an error means to whoever gets it.

/// Whose fault an error is. What shows it derives an exit code and an HTTP status from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Three, as there are three things to do: mend the input, try later, or ask for privileges.
pub enum Fault {
    /// The input or the configuration is wrong.
    Input,
    /// What was asked for cannot be done now.
    Refused,
    /// Privileges are missing, or the kernel refuses.
    Privilege,
}

/// An error that says what to do about it.
pub trait Explain: std::error::Error + 'static {
    /// Whose fault it is.
    fn fault(&self) -> Fault;

    /// What to do about it, if that can be said.
    fn hint(&self) -> Option<String>;
}

/// An error and its causes on one line.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Some libraries repeat their cause in their own message.
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read the map")]
        struct Outer(#[source] std::io::Error);
        let error = Outer(std::io::Error::other("no such map"));
        assert_eq!(chain(&error), "cannot read the map: no such map");
    }
}
