"""Sessions: a keyed operator with state and event time, which closes a session after a pause.

A session of a user ends when 30 minutes pass without a click. Watermarks say when that is sure,
so a session is sent on as soon as no later click can belong to it.

Run it by `python examples/sessions.py`.
"""

import whale_ray as whale

GAP_NS = 30 * 60 * 1_000_000_000
CLICKS = [
    {"minute": 0, "user": "ann"},
    {"minute": 10, "user": "ann"},
    {"minute": 5, "user": "bob"},  # five minutes late: within max_out_of_order_ms
    {"minute": 12, "user": "ann"},
    {"minute": 30, "user": "bob"},
    {"minute": 60, "user": "ann"},
]


class Sessions(whale.Process):
    """Keeps the open session of every user: its start, its last click, the number of clicks."""

    def open(self, context):
        self.open_sessions = {}

    def on_row(self, row, out):
        now = out.time_ns  # the row's event time
        start, last, clicks = self.open_sessions.get(row.user, (now, now, 0))
        if now - last > GAP_NS:
            self.end(row.user, out)
            start, clicks = now, 0
        self.open_sessions[row.user] = (start, now, clicks + 1)

    def on_watermark(self, watermark_ns, out):
        for user, (_, last, _) in list(self.open_sessions.items()):
            if watermark_ns - last > GAP_NS:
                self.end(user, out)

    def close(self, out):
        for user in list(self.open_sessions):
            self.end(user, out)

    def end(self, user, out):
        start, last, clicks = self.open_sessions.pop(user)
        minutes = (last - start) // (60 * 1_000_000_000)
        out.emit_row(user=user, minutes=minutes, clicks=clicks)


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
