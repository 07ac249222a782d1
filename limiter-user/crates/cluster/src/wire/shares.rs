//! Messages about shares as bytes.
//!
//! A message may be longer than a frame, so it is written as parts, each of which is a message that
//! stands alone: all say when they were made, what they echo and what is delegated, and the lists are
//! divided among them. Every number that gives somebody something is rounded down.

use std::time::Duration;

use super::bytes::{Malformed, Reader, put_number};
use super::float;
use crate::message::{Ask, Attempt, Grant, Loan, Report, Standing, Step, Tally, Transfer, Vote};
use crate::{HostId, KeyId, Message, Moment, ViewId};
use model::Share;

/// Views that a message may name. Where more are outstanding nothing is delegated until some have lapsed.
pub const MAX_VIEWS: usize = 32;

const ECHO: u8 = 1;
const DELEGATED: u8 = 2;
const GRANTED: u8 = 4;
const MAJORITY: u8 = 8;
const FAR: u8 = 16;
const COUNTS: u8 = 32;
const RENEWS: u8 = 64;

const REPORTS: u8 = 1;
const GRANTS: u8 = 2;
const TRANSFERS: u8 = 3;
const RECEIVED: u8 = 4;
/// Reports of keys whose limit a majority decides about.
const REPORTS_MAJORITY: u8 = 5;
const VOTES: u8 = 6;
const ASKS: u8 = 7;
/// Asks of keys whose limit a majority decides about.
const ASKS_MAJORITY: u8 = 8;
const LOANS: u8 = 9;
const TALLY: u8 = 10;
const STANDING: u8 = 11;
const ASK: u8 = 12;

/// Appends what of `message` there is to say to parts of at most `longest` bytes, which has to be at
/// least 400.
pub fn encode(message: &Message, longest: usize) -> Vec<Vec<u8>> {
    // Numbers of grants rise together; what is above the lowest one mostly takes a byte.
    let lowest = message.grants.iter().map(|grant| grant.number).min().unwrap_or(0);
    // At least 400 bytes: a head with all views and spans takes over 300, and an item must fit behind it.
    let mut parts = Parts::new(head(message, lowest), longest);
    let kinds = [REPORTS, REPORTS_MAJORITY, ASKS, ASKS_MAJORITY];
    for (reports, kinds) in [(&message.reports, &kinds[..2]), (&message.asks, &kinds[2..])] {
        for report in reports {
            parts.item(kinds[usize::from(report.majority)], |to| {
                to.extend(report.key.bytes());
                // Up: nobody gets more by a demand alone, and a demand cut short would leave a host limited.
                to.extend(float::up(report.demand).to_be_bytes());
                put_number(to, report.in_use.into());
            });
        }
    }
    for loan in &message.loans {
        parts.item(LOANS, |to| {
            to.extend(loan.key.bytes());
            // Down: a borrower must not count more than the lender's books hold (I11).
            to.extend(float::down(loan.share).to_be_bytes());
            put_number(to, loan.number.into());
            put_number(to, milliseconds(loan.lasts));
        });
    }
    for grant in &message.grants {
        parts.item(GRANTS, |to| {
            to.extend(grant.key.bytes());
            // Down: what is used must stay within what the owner has granted (I4).
            to.extend(float::down(grant.share).to_be_bytes());
            put_number(to, (grant.number - lowest).into());
        });
    }
    for transfer in &message.transfers {
        parts.item(TRANSFERS, |to| {
            put_number(to, transfer.number);
            // To the unit: a home share moves for good, and what is rounded off here would idle for ever.
            put_number(to, transfer.share.units());
        });
    }
    for vote in &message.votes {
        parts.item(VOTES, |to| {
            to.extend(vote.host.0.to_be_bytes());
            // Down: a coordinator must not use more than the lost host has (I10).
            to.extend(float::down(vote.known).to_be_bytes());
        });
    }
    for number in &message.received {
        parts.item(RECEIVED, |to| put_number(to, *number));
    }
    if let Some(tally) = &message.tally {
        parts.item(TALLY, |to| put_tally(to, tally));
    }
    if let Some(standing) = &message.standing {
        parts.item(STANDING, |to| put_standing(to, standing));
    }
    if let Some(Ask { attempt, step }) = &message.ask {
        parts.item(ASK, |to| {
            put_attempt(to, *attempt);
            to.push(match step {
                Step::Promise => 0,
                Step::Count => 1,
                Step::Accept(_) => 2,
                Step::Release => 3,
                Step::Void => 4,
            });
            if let Step::Accept(tally) = step {
                put_tally(to, tally);
            }
        });
    }
    parts.finish()
}

fn put_attempt(to: &mut Vec<u8>, attempt: Attempt) {
    put_number(to, attempt.number);
    to.extend(attempt.by.0.to_be_bytes());
}

fn put_tally(to: &mut Vec<u8>, tally: &Tally) {
    put_attempt(to, tally.counted);
    put_number(to, tally.hosts.into());
    put_number(to, tally.lacking.units());
}

fn put_standing(to: &mut Vec<u8>, standing: &Standing) {
    to.push(standing.accepted.is_some().into());
    put_attempt(to, standing.promised);
    put_attempt(to, standing.counted);
    if let Some((attempt, tally)) = &standing.accepted {
        put_attempt(to, *attempt);
        put_tally(to, tally);
    }
    put_attempt(to, standing.voided);
    put_number(to, standing.home.units());
    // No set has the sum 0.
    to.extend(standing.renewed.unwrap_or(0).to_be_bytes());
}

/// What every part begins with.
fn head(message: &Message, lowest: u32) -> Vec<u8> {
    let mut to = vec![0];
    to.extend(message.sent.0.to_be_bytes());
    put_number(&mut to, message.era);
    if let Some(echo) = message.echo {
        to[0] |= ECHO;
        to.extend(echo.0.to_be_bytes());
    }
    // A view left out would let the receiver count on more than was given.
    let told = message.views.len() <= MAX_VIEWS;
    // Who has nothing to delegate yet tells that it would: so others know that it is to be given some.
    let delegates = !message.delegated.is_none() || !message.delegated_for.is_zero();
    if told && delegates && !message.views.is_empty() {
        to[0] |= DELEGATED;
        to.extend(float::down(message.delegated).to_be_bytes());
        put_number(&mut to, milliseconds(message.delegated_for));
    }
    if told && !message.majority.is_none() {
        to[0] |= MAJORITY;
        to.extend(float::down(message.majority).to_be_bytes());
        put_number(&mut to, milliseconds(message.majority_for));
    }
    to[0] |= if message.far { FAR } else { 0 };
    to[0] |= if message.counts { COUNTS } else { 0 };
    to[0] |= if message.renews { RENEWS } else { 0 };
    let views = if told { &message.views[..] } else { &[] };
    to.push(views.len() as u8);
    to.extend(views.iter().flat_map(|view| view.0.to_be_bytes()));
    if !message.grants.is_empty() {
        to[0] |= GRANTED;
        put_number(&mut to, milliseconds(message.granted_for));
        put_number(&mut to, lowest.into());
    }
    to
}

/// Rounded down.
/// A longer span than was given would end at the holder after it ends at the grantor (I8).
fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Divides items among parts.
struct Parts {
    head: Vec<u8>,
    longest: usize,
    parts: Vec<Vec<u8>>,
    part: Vec<u8>,
    /// The section that the part ends with: of what, and where its number of items is.
    section: Option<(u8, usize)>,
    item: Vec<u8>,
}

impl Parts {
    fn new(head: Vec<u8>, longest: usize) -> Self {
        let part = head.clone();
        Self { head, longest, parts: Vec::new(), part, section: None, item: Vec::new() }
    }

    fn item(&mut self, kind: u8, write: impl FnOnce(&mut Vec<u8>)) {
        self.item.clear();
        write(&mut self.item);
        // Two bytes for the section's head, needed or not: the simpler bound wastes at most those.
        if self.part.len() + 2 + self.item.len() > self.longest {
            self.parts.push(std::mem::replace(&mut self.part, self.head.clone()));
            self.section = None;
        }
        let counted = self.section.filter(|(of, at)| *of == kind && self.part[*at] < u8::MAX);
        let at = counted.map_or_else(
            || {
                self.part.extend([kind, 0]);
                self.part.len() - 1
            },
            |(_, at)| at,
        );
        self.section = Some((kind, at));
        self.part[at] += 1;
        self.part.extend_from_slice(&self.item);
    }

    fn finish(mut self) -> Vec<Vec<u8>> {
        self.parts.push(self.part);
        self.parts
    }
}

/// Reads one part.
///
/// # Errors
/// If it is none. What it may allocate is bounded by the bytes there are: an item takes at least one.
pub fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
    let mut from = Reader::new(bytes);
    let flags = from.u8()?;
    // An unknown flag may stand for a field: nothing behind it could be told apart.
    if flags & !(ECHO | DELEGATED | GRANTED | MAJORITY | FAR | COUNTS | RENEWS) != 0 {
        return Err(Malformed);
    }
    let (far, counts, renews) = (flags & FAR != 0, flags & COUNTS != 0, flags & RENEWS != 0);
    let (sent, era) = (Moment(from.u64()?), from.number()?);
    let mut message = Message { sent, era, far, counts, renews, ..Message::default() };
    if flags & ECHO != 0 {
        message.echo = Some(Moment(from.u64()?));
    }
    if flags & DELEGATED != 0 {
        message.delegated = float::read(from.u16()?);
        message.delegated_for = Duration::from_millis(from.number()?);
    }
    if flags & MAJORITY != 0 {
        message.majority = float::read(from.u16()?);
        message.majority_for = Duration::from_millis(from.number()?);
    }
    let views = usize::from(from.u8()?);
    // What is delegated by no view would be delegated by any.
    if views > MAX_VIEWS || (views == 0 && flags & (DELEGATED | MAJORITY) != 0) {
        return Err(Malformed);
    }
    for _ in 0..views {
        message.views.push(ViewId(from.u64()?));
    }
    let mut lowest = 0;
    if flags & GRANTED != 0 {
        message.granted_for = Duration::from_millis(from.number()?);
        lowest = from.small()?;
    }
    while !from.is_empty() {
        let (kind, count) = (from.u8()?, from.u8()?);
        for _ in 0..count {
            item(&mut from, kind, lowest, &mut message)?;
        }
    }
    Ok(message)
}

fn item(
    from: &mut Reader<'_>,
    kind: u8,
    lowest: u32,
    message: &mut Message,
) -> Result<(), Malformed> {
    match kind {
        REPORTS | REPORTS_MAJORITY => message.reports.push(report(from, kind == REPORTS_MAJORITY)?),
        ASKS | ASKS_MAJORITY => message.asks.push(report(from, kind == ASKS_MAJORITY)?),
        LOANS => message.loans.push(Loan {
            key: KeyId::from_bytes(from.array()?),
            share: float::read(from.u16()?),
            number: from.small()?,
            lasts: Duration::from_millis(from.number()?),
        }),
        GRANTS => message.grants.push(Grant {
            key: KeyId::from_bytes(from.array()?),
            share: float::read(from.u16()?),
            // A sum that wraps would be the number of an early grant (I5).
            number: from.small()?.checked_add(lowest).ok_or(Malformed)?,
        }),
        TRANSFERS => message
            .transfers
            .push(Transfer { number: from.number()?, share: Share::from_units(from.number()?) }),
        VOTES => {
            message.votes.push(Vote { host: HostId(from.u64()?), known: float::read(from.u16()?) });
        }
        RECEIVED => message.received.push(from.number()?),
        TALLY => message.tally = Some(tally(from)?),
        STANDING => message.standing = Some(standing(from)?),
        ASK => message.ask = Some(ask(from)?),
        // How long items of an unknown kind are nobody knows: the rest cannot be read.
        _ => return Err(Malformed),
    }
    Ok(())
}

fn report(from: &mut Reader<'_>, majority: bool) -> Result<Report, Malformed> {
    let (key, demand) = (KeyId::from_bytes(from.array()?), float::read(from.u16()?));
    Ok(Report { key, demand, in_use: from.small()?, majority })
}

fn attempt(from: &mut Reader<'_>) -> Result<Attempt, Malformed> {
    Ok(Attempt { number: from.number()?, by: HostId(from.u64()?) })
}

fn tally(from: &mut Reader<'_>) -> Result<Tally, Malformed> {
    let (counted, hosts) = (attempt(from)?, from.small()?);
    Ok(Tally { counted, hosts, lacking: Share::from_units(from.number()?) })
}

fn standing(from: &mut Reader<'_>) -> Result<Standing, Malformed> {
    let accepts = from.u8()? != 0;
    let (promised, counted) = (attempt(from)?, attempt(from)?);
    let accepted = if accepts { Some((attempt(from)?, tally(from)?)) } else { None };
    let (voided, home) = (attempt(from)?, Share::from_units(from.number()?));
    let renewed = Some(from.u64()?).filter(|sum| *sum != 0);
    Ok(Standing { promised, counted, accepted, voided, home, renewed })
}

fn ask(from: &mut Reader<'_>) -> Result<Ask, Malformed> {
    let attempt = attempt(from)?;
    let step = match from.u8()? {
        0 => Step::Promise,
        1 => Step::Count,
        2 => Step::Accept(tally(from)?),
        3 => Step::Release,
        4 => Step::Void,
        _ => return Err(Malformed),
    };
    Ok(Ask { attempt, step })
}

#[cfg(test)]
mod tests;
