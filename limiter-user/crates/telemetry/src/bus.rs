//! Hands samples and events to whoever listens.

use std::sync::Arc;

use tokio::sync::broadcast::{Receiver, Sender, channel};

use super::{Event, Sample};

/// Events that a listener may be behind before it misses some.
const EVENTS: usize = 1024;

/// Samples that a listener may be behind before it misses some.
// Few: a listener that is late wants the present, not the past.
const SAMPLES: usize = 16;

/// Where samples and events go out. Clones are the same bus.
#[derive(Clone, Debug)]
pub struct Bus {
    events: Sender<Arc<Event>>,
    samples: Sender<Arc<Sample>>,
}

impl Default for Bus {
    fn default() -> Self {
        Self { events: channel(EVENTS).0, samples: channel(SAMPLES).0 }
    }
}

impl Bus {
    /// Tells an event to all who listen now.
    // Never waits: a slow page would otherwise hold up whoever changes limits. It is told what it
    // missed.
    pub fn tell(&self, event: Event) {
        // An error means that nobody listens.
        let _ = self.events.send(Arc::new(event));
    }

    /// Hands a sample to all who listen now.
    pub fn sample(&self, sample: &Arc<Sample>) {
        let _ = self.samples.send(Arc::clone(sample));
    }

    /// All events from now on.
    pub fn events(&self) -> Receiver<Arc<Event>> {
        self.events.subscribe()
    }

    /// All samples from now on.
    pub fn samples(&self) -> Receiver<Arc<Sample>> {
        self.samples.subscribe()
    }
}
