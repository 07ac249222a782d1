//! Strict limits, for which a thread gets leases: what it has to know, and what it tells.

use tokio::sync::watch;

use super::Rules;
use api::LeasesReport;
use model::Limits;
use telemetry::What;

/// The thread as the core sees it.
pub(crate) struct LeaseView {
    slowest: watch::Sender<Option<f64>>,
    report: watch::Receiver<LeasesReport>,
    /// Whether it was told last that nothing is leased.
    is_lost: bool,
}

impl LeaseView {
    /// `slowest` tells the thread the least that strict limits admit, packets a second, if there are any.
    pub(crate) const fn new(
        slowest: watch::Sender<Option<f64>>,
        report: watch::Receiver<LeasesReport>,
    ) -> Self {
        Self { slowest, report, is_lost: false }
    }

    /// These are the limits now.
    pub(super) fn limits_changed(&self, limits: &[&Limits]) {
        let slowest = limits.iter().filter_map(|limits| limits.slowest_strict());
        let slowest = slowest.min_by(f64::total_cmp);
        self.slowest.send_if_modified(|present| std::mem::replace(present, slowest) != slowest);
    }
}

impl Rules {
    /// How strict limits fare, if there are any.
    pub(crate) fn leases(&self) -> Option<LeasesReport> {
        let strict = self.strict.as_ref()?;
        let is_used = strict.slowest.borrow().is_some();
        is_used.then(|| strict.report.borrow().clone())
    }

    /// Tells that the store leases nothing, or does again.
    pub(crate) fn tell_of_leases(&mut self) {
        let Some(LeasesReport { problem, .. }) = self.leases() else { return };
        let Some(strict) = &mut self.strict else { return };
        if std::mem::replace(&mut strict.is_lost, problem.is_some()) != problem.is_some() {
            self.events.tell(What::Leases { problem });
        }
    }
}
