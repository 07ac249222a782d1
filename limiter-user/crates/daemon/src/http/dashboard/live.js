// What the daemon tells once a second, and what becomes of it when the daemon is gone.

const AGAIN = 3000;

/** Calls `tell` with each report and `state` with what the connection is like. */
export function follow(tell, state) {
  let last = 0;
  const connect = () => {
    const events = new EventSource('/v1/live');
    events.onmessage = event => {
      last = Date.now();
      state('live', 'Live');
      tell(JSON.parse(event.data));
    };
    events.onerror = () => {
      state('lost', 'No answer from the daemon; trying again. Limits stay in force without it.');
      if (events.readyState === EventSource.CLOSED) setTimeout(again, AGAIN);
    };
  };
  // A refusal has a reason, which an event source does not tell.
  const again = async () => {
    try {
      const answer = await fetch('/v1/session');
      if (answer.status === 401) {
        location.assign('/login');
        return;
      }
    } catch {
      // The daemon is not there; the next attempt will tell.
    }
    connect();
  };
  connect();
  setInterval(() => {
    if (last && Date.now() - last > 5000) state('lost', 'Nothing has come for more than five seconds.');
  }, 1000);
}

/** Fetches JSON; null if the daemon does not have it. */
export async function get(path) {
  try {
    const answer = await fetch(path);
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

/** Asks for a change. Returns what went wrong in words, or null. */
export async function change(method, path, body) {
  try {
    const headers = body && typeof body !== 'string' ? { 'content-type': 'application/json' } : {};
    const text = body && typeof body !== 'string' ? JSON.stringify(body) : body;
    const answer = await fetch(path, { method, headers, body: text });
    if (answer.ok) return null;
    const failure = await answer.json();
    return failure.hint ? `${failure.message}: ${failure.hint}` : failure.message;
  } catch (error) {
    return `the daemon does not answer: ${error.message}`;
  }
}
