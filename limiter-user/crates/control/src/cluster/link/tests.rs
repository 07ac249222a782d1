use super::*;
use cluster::wire::{Epoch, KEY, Key, Rejection, Topic};

type Running = (Handle, mpsc::Receiver<Delivery>, JoinHandle<()>);

fn start(settings: Settings, listen: SocketAddr, seeds: &[String]) -> Result<Running, Failure> {
    start_on(settings, bind(listen)?, seeds)
}

/// An address of this machine that is free.
fn free() -> SocketAddr {
    std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

async fn host(id: HostId, address: SocketAddr, seeds: &[String], second: u64) -> Running {
    let epoch = Epoch::starting(None, second, 5);
    let settings = Settings {
        me: Identity::new(id, "a", "default", address, epoch, 100),
        cluster: Some(ClusterId(77)),
        bootstrap: Bootstrap::NONE,
        agreement: Agreement::new((32, 64)),
        ring: KeyRing::new(Key::new([3; KEY])),
        seed: second,
        salt: || 0,
    };
    start(settings, address, seeds).unwrap()
}

async fn until_members(handle: &mut Handle, count: usize) {
    let members = handle.members.wait_for(|members| members.len() == count);
    let members = tokio::time::timeout(Duration::from_secs(15), members).await;
    assert_eq!(members.expect("in time").unwrap().len(), count);
}

/// Waits for this to be said.
async fn hear(deliveries: &mut mpsc::Receiver<Delivery>, content: &Content) -> HostId {
    let heard = async {
        loop {
            match deliveries.recv().await.expect("the link runs") {
                Delivery::Said { from, content: said, .. } if said == *content => return from,
                _ => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(5), heard).await.expect("in time")
}

#[tokio::test(flavor = "current_thread")]
async fn three_hosts_find_and_hear_each_other() {
    let addresses = [free(), free(), free()];
    let [id_a, id_b, id_c] = [1, 2, 3].map(HostId);
    let (mut a, mut heard_by_a, _) = host(id_a, addresses[0], &[], 1).await;
    // A seed that does not resolve keeps nobody from finding the other one.
    let seeds = [addresses[0].to_string(), "no-such-host.invalid:7946".to_owned()];
    let (mut b, mut heard_by_b, _) = host(id_b, addresses[1], &seeds, 2).await;
    let (mut c, mut heard_by_c, running) = host(id_c, addresses[2], &seeds, 3).await;
    for handle in [&mut a, &mut b, &mut c] {
        until_members(handle, 3).await;
    }
    for (handle, to, heard, from) in [
        (&a, id_b, &mut heard_by_b, id_a),
        (&b, id_c, &mut heard_by_c, id_b),
        (&c, id_a, &mut heard_by_a, id_c),
    ] {
        let content = Content::Other(Topic::Limits, to.0.to_be_bytes().to_vec());
        assert!(handle.order(Command::Send { to, digest: None, content: content.clone() }));
        assert_eq!(hear(heard, &content).await, from);
    }
    let seed = |seeds: &Vec<Seed>| seeds[1].error.is_some() && seeds[0].error.is_none();
    let seeds = tokio::time::timeout(Duration::from_secs(15), b.seeds.wait_for(seed)).await.is_ok();
    assert!(seeds);
    // Somebody else knocks.
    let stranger = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(b"hello?", addresses[0]).unwrap();
    let counted = |report: &Report| report.counts.rejected(Rejection::Foreign).packets == 1;
    let report = a.report.wait_for(counted);
    let counted = tokio::time::timeout(Duration::from_secs(5), report).await.is_ok();
    assert!(counted);
    // One leaves in order, one comes back.
    assert!(c.order(Command::Leave));
    tokio::time::timeout(Duration::from_secs(5), running).await.expect("in time").unwrap();
    until_members(&mut a, 2).await;
    until_members(&mut b, 2).await;
    let (mut c, _heard, _running) = host(id_c, addresses[2], &[addresses[1].to_string()], 9).await;
    for handle in [&mut a, &mut b, &mut c] {
        until_members(handle, 3).await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn an_address_that_is_taken_is_told() {
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let me = Identity::new(HostId(1), "a", "default", address, Epoch::starting(None, 1, 1), 100);
    let ring = KeyRing::new(Key::new([3; KEY]));
    let settings = Settings {
        me,
        cluster: None,
        bootstrap: Bootstrap::NONE,
        agreement: Agreement::new((32, 64)),
        ring,
        seed: 0,
        salt: || 0,
    };
    let failure = start(settings, address, &[]).unwrap_err();
    assert!(failure.message.contains(&address.to_string()) && failure.hint.is_some());
}
