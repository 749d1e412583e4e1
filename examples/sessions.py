"""Sessions: state of each key and a timer, which ends a session after a pause.

A session of a user ends when 30 minutes pass without a click. The timer goes by event time, so a
session is sent on as soon as no later click can belong to it. `whale.session_window` does the same
for aggregates; a class like this one may do anything else with the rows.

Run it by `python examples/sessions.py`.
"""

import whale_ray as whale
from whale_ray import state

GAP_NS = 30 * 60 * 1_000_000_000
CLICKS = [
    {"minute": 0, "user": "ann"},
    {"minute": 10, "user": "ann"},
    {"minute": 5, "user": "bob"},  # five minutes late: within max_out_of_order_ms
    {"minute": 12, "user": "ann"},
    {"minute": 30, "user": "bob"},
    {"minute": 60, "user": "ann"},
]


class Sessions(whale.KeyedProcess):
    """Keeps the open session of every user: its start, its last click, the number of clicks."""

    start = state.min("int64")
    last = state.max("int64")
    clicks = state.count()
    pause = state.timer()

    def on_row(self, row, out):
        now_ns = out.time_ns  # the row's event time
        self.start.add(now_ns)
        self.last.add(now_ns)
        self.clicks.add(1)
        self.pause.set(now_ns + GAP_NS)

    def on_timer(self, timer, out):
        minutes = (self.last.get() - self.start.get()) // (60 * 1_000_000_000)
        out.emit_row(user=self.key.user, minutes=minutes, clicks=self.clicks.get())
        self.clear()


def main():
    seconds = [{"t": 60 * click["minute"], "user": click["user"]} for click in CLICKS]
    topology = whale.Topology("sessions")
    clicks = topology.source(
        whale.sources.iterable(seconds),
        id="clicks",
        event_time="t",
        event_time_unit="s",
        max_out_of_order_ms=5 * 60 * 1000,
    )
    sessions = clicks.key_by("user").process(Sessions, id="sessions", parallelism=2)
    sessions.sink(whale.sinks.collect(), id="out")
    frame = whale.run(topology).results("out").to_pandas()
    print(frame.sort_values(["user", "clicks"]).to_string(index=False))


if __name__ == "__main__":
    main()
