use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::push_down::PushDowns;
use crate::service::Place;

fn service() -> (TempDir, Service) {
    let folder = tempfile::tempdir().unwrap();
    let place = Place::small(folder.path(), 1_000);
    let service = Service::open(&place, Vec::new(), PushDowns::off(Arc::default()), None).unwrap();
    (folder, service)
}

impl<'a> Session<'a> {
    fn new(service: &'a Service, token: Option<&'a Token>) -> Self {
        Self {
            service,
            token,
            known: token.is_none(),
            now: 0,
            replies: Vec::new(),
            texts: Vec::new(),
        }
    }

    /// What is replied to commands that come in some parts.
    fn talk(&mut self, parts: &[&[u8]]) -> String {
        let mut input = Vec::new();
        for part in parts {
            input.extend_from_slice(part);
            let (used, then) = self.batch(&input);
            input.drain(..used);
            if then == Then::Close {
                break;
            }
        }
        String::from_utf8(std::mem::take(&mut self.replies)).unwrap()
    }
}

/// Hands bytes to a client's session.
pub(crate) fn talk(service: &Service, input: &[u8]) {
    Session::new(service, None).batch(input);
}

#[test]
fn replies_do_not_depend_on_how_commands_are_cut() {
    let (_folder, service) = service();
    let commands = b"PING\r\n*2\r\n$4\r\necho\r\n$3\r\na\r\n\r\n*1\r\n$4\r\nPING\r\nCL.THROTTLE k 0 1 9 0\r\n*0\r\nSELECT 1\r\nCOMMAND\r\n";
    let whole = Session::new(&service, None).talk(&[commands]);
    assert_eq!(
        whole,
        "+PONG\r\n$3\r\na\r\n\r\n+PONG\r\n*5\r\n:0\r\n:1\r\n:1\r\n:-1\r\n:0\r\n+OK\r\n*0\r\n"
    );
    for at in 0..commands.len() {
        let (first, second) = commands.split_at(at);
        assert_eq!(Session::new(&service, None).talk(&[first, second]), whole, "{at}");
    }
}

#[test]
fn nothing_is_done_for_who_has_not_shown_the_token() {
    let (_folder, service) = service();
    let token = Token::new(b"0123456789abcdef");
    let talk = |commands: &str| Session::new(&service, Some(&token)).talk(&[commands.as_bytes()]);
    for command in ["PING", "INFO", "CL.THROTTLE k 1 1 1", "HELLO", "HELLO 2", "X"] {
        assert!(talk(&format!("{command}\r\n")).starts_with("-NOAUTH"), "{command}");
    }
    assert_eq!(talk("AUTH 0123456789abcdef\r\nPING\r\n"), "+OK\r\n+PONG\r\n");
    assert_eq!(talk("AUTH default 0123456789abcdef\r\nPING\r\n"), "+OK\r\n+PONG\r\n");
    assert!(
        talk("HELLO 2 AUTH default 0123456789abcdef\r\n").starts_with("*6\r\n$6\r\nserver\r\n")
    );
    assert!(talk("HELLO 2 AUTH default 0123456789abcdeF\r\n").starts_with("-WRONGPASS"));
    assert!(talk("HELLO 3\r\n").starts_with("-NOPROTO"));
    assert!(talk("AUTH\r\n").starts_with("-ERR wrong number"));
    assert!(talk("AUTH a b c\r\n").starts_with("-ERR wrong number"));
    assert_eq!(service.states().table.keys(), 0);
}

proptest! {
    #[test]
    fn no_bytes_bring_it_down(input in prop::collection::vec(any::<u8>(), 0..400)) {
        let (_folder, service) = service();
        for head in [&b""[..], b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n", b"CL.THROTTLE k "] {
            let mut session = Session::new(&service, None);
            let (used, _) = session.batch(&[head, &input].concat());
            prop_assert!(used <= head.len() + input.len());
        }
    }

    #[test]
    fn any_numbers_are_answered(numbers in prop::array::uniform4(any::<i64>())) {
        let (_folder, service) = service();
        let [burst, count, period, quantity] = numbers;
        let command = format!("CL.THROTTLE k {burst} {count} {period} {quantity}\r\n");
        let reply = Session::new(&service, None).talk(&[command.as_bytes()]);
        prop_assert!(reply.starts_with("*5\r\n") || reply.starts_with("-ERR "), "{}", reply);
    }
}
