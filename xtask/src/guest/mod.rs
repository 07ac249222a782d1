//! Guests: virtual machines with a Debian of their own, for what namespaces cannot show: another kernel,
//! a real systemd, a boot, a clock.
//!
//! An [`Image`] is made of a Debian suite and kept. A [`Guest`] boots a copy of it, runs commands and
//! takes files; it can stand still, and go on from a [`Snapshot`]. Several meet on a [`Network`] that exists in
//! this process alone. Everything has a timeout, and errors quote what the guest printed last.

mod agent;
mod image;
mod machine;
mod monitor;
mod network;

pub(crate) use image::{Image, Spec};
pub(crate) use machine::{Guest, Machine, PANIC, Snapshot};
pub(crate) use network::{Card, Network, Sender};
