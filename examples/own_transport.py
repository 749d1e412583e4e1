"""A transport of one's own: rows between processes go over Unix datagram sockets.

Run it by `python examples/own_transport.py`.
"""

import select
import socket

import whale_ray as whale


class DatagramSender(whale.transports.Sender):
    def open(self, context, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.connect(address)
        self.socket.setblocking(False)

    def ready_to_send(self):
        return True  # put raises BlockingIOError where there is no room: "not now"

    def put(self, message):
        self.socket.send(message)

    def close(self):
        self.socket.close()


class DatagramReceiver(whale.transports.Receiver):
    def open(self, context):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("")
        self.message_bytes = context.message_bytes
        return self.socket.getsockname()  # the address that senders are opened with

    def available(self):
        return bool(select.select([self.socket], [], [], 0)[0])

    def get(self):
        return self.socket.recv(self.message_bytes)

    def release_buffer(self, buffer):
        pass  # recv made a copy; a transport that receives in place may reuse its memory now

    def close(self):
        self.socket.close()


def main():
    datagrams = whale.transports.Transport(
        "datagrams", DatagramSender, DatagramReceiver, message_bytes=16 * 1024
    )
    topology = whale.Topology("squares", transport=datagrams)
    rows = [{"n": n} for n in range(1000)]
    numbers = topology.source(whale.sources.iterable(rows), id="numbers")
    squares = numbers.shuffle().map(lambda row: {"n": row.n * row.n}, id="squares", parallelism=3)
    squares.sink(whale.sinks.collect(), id="out", parallelism=1)
    print(topology.explain(workers=3))
    job = whale.submit(topology, on="processes", workers=3).wait(60)
    print("sum of squares:", job.results("out").to_pandas()["n"].sum())


if __name__ == "__main__":
    main()
