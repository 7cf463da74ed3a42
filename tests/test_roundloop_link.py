# SPDX-License-Identifier: Apache-2.0
"""The round loop's link to the worker: OPEN and its answers, PING, loss and return."""

from __future__ import annotations

import contextlib
import errno
import threading
import time

from collections.abc import Iterator

import pytest
import zmq

from fake_engine import SESSION, until
from fake_worker import FakeWorker, fake_worker, status_reply
from loop_harness import MS, Running, opening, running

from hostflag.control import Open
from hostflag.verdicts import Verdict
from hostflag.wire import Kind, Status, decode_control, encode_header
from proxyd._daemon import ffi, lib
from proxyd.sessions.roundloop import EventKind, LinkState


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    with fake_worker() as one:
        yield one


@contextlib.contextmanager
def terminating(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[None]:
    """Terminate a context, which waits until its sockets are closed: in a thread."""
    thread = threading.Thread(target=context.term)
    thread.start()
    yield
    thread.join(20)
    assert not thread.is_alive()


def good_round(loop: Running, worker: FakeWorker, t: int) -> None:
    loop.engine.begin(t)
    worker.answer(worker.expect_round(), [5, 6, 7])
    assert loop.engine.finish(t) is Verdict.OK


def test_open_is_sent_as_given_and_its_answer_handed_on(worker: FakeWorker) -> None:
    with running(worker) as loop:
        assert loop.loop.link_state() is LinkState.NONE
        loop.give()
        header, parts = worker.receive()
        assert parts == [opening()]
        assert isinstance(decode_control(header, parts[0]), Open)
        assert loop.loop.link_state() is LinkState.OPENING
        body = b'{"worker": "one", "drafter": "none"}'
        worker.send(encode_header(Kind.OPENED, SESSION, 0, len(body)) + body)
        assert loop.wait_for(EventKind.LINK_UP).body == body
        assert loop.loop.link_state() is LinkState.UP


def test_rounds_are_sent_only_once_the_worker_has_opened(worker: FakeWorker) -> None:
    with running(worker) as loop:
        loop.give()
        loop.wait_link(LinkState.OPENING)
        loop.engine.begin(1)
        assert loop.engine.finish(1) is Verdict.DISCONNECTED
        worker.open()
        loop.wait_link(LinkState.UP)
        good_round(loop, worker, 2)


def test_a_refusal_is_handed_on_and_refuses_rounds(worker: FakeWorker) -> None:
    with running(worker) as loop:
        loop.give()
        worker.expect(Kind.OPEN)
        worker.refuse("model")
        assert b'"model"' in loop.wait_for(EventKind.LINK_REFUSED).body
        assert loop.loop.link_state() is LinkState.REFUSED
        loop.engine.begin(1)
        assert loop.engine.finish(1) is Verdict.REFUSED


def test_a_refusal_is_tried_again_after_a_while(worker: FakeWorker) -> None:
    with running(worker, reopen_ns=20 * MS) as loop:
        loop.give()
        for _ in range(3):
            worker.expect(Kind.OPEN)
            worker.refuse()
        worker.open()
        loop.wait_for(EventKind.LINK_UP)


def test_a_refusal_by_mistake_costs_a_moment_and_those_that_are_meant_more(worker: FakeWorker) -> None:
    """A worker that was busy reads the OPEN of an older session last, and says that ours was replaced."""
    waits = []
    with running(worker, reopen_ns=1600 * MS) as loop:
        loop.up(worker)
        for again in (lambda: worker.expect(Kind.OPEN), lambda: worker.expect(Kind.OPEN), worker.open):
            worker.refuse("replaced")
            refused = time.monotonic()
            again()
            waits.append(time.monotonic() - refused)
        loop.wait_for(EventKind.LINK_UP)
    for wait, least in zip(waits, (0.1, 0.2, 0.4), strict=True):
        assert wait >= 0.95 * least
    assert waits[0] < 1.6, "sooner than the configured time"


def test_a_worker_may_refuse_later(worker: FakeWorker) -> None:
    """It was restarted behind the same connection, or another session took this one's place."""
    with running(worker) as loop:
        loop.up(worker)
        worker.refuse("replaced")
        assert b'"replaced"' in loop.wait_for(EventKind.LINK_REFUSED).body
        assert (loop.counter("link_ups"), loop.counter("link_downs")) == (1, 1)


def test_a_worker_of_another_version_can_say_so(worker: FakeWorker) -> None:
    with running(worker) as loop:
        loop.give()
        worker.expect(Kind.OPEN)
        body = b'{"code":"protocol","reason":"this worker speaks version 2"}'
        message = bytearray(encode_header(Kind.REFUSED, SESSION, 0, len(body)) + body)
        message[4] = 2
        worker.send(bytes(message))
        assert loop.wait_for(EventKind.LINK_REFUSED).body == body


@pytest.mark.parametrize("round_first", [False, True])
def test_ping_at_rest_keeps_a_link(worker: FakeWorker, round_first: bool) -> None:
    with running(worker, ping_ns=20 * MS) as loop:
        loop.up(worker)
        if round_first:
            good_round(loop, worker, 1)
        numbers = []
        for _ in range(3):
            header = worker.expect(Kind.PING)
            numbers.append(header.round)
            worker.send(encode_header(Kind.PONG, SESSION, header.round))
        assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]
        until(lambda: loop.counter("pongs") == 3, "the PONGs are counted")
        assert loop.loop.link_state() is LinkState.UP


def test_silence_after_ping_ends_a_link(worker: FakeWorker) -> None:
    with running(worker, ping_ns=20 * MS, ping_limit_ns=20 * MS) as loop:
        loop.up(worker)
        worker.expect(Kind.PING)
        assert "PING" in loop.wait_for(EventKind.LINK_RETURNED).reason
        loop.wait_for(EventKind.LINK_WANTED)
        loop.up(worker)


def test_silence_after_open_ends_a_link(worker: FakeWorker) -> None:
    with running(worker, open_limit_ns=30 * MS) as loop:
        loop.give()
        worker.expect(Kind.OPEN)
        assert "OPEN" in loop.wait_for(EventKind.LINK_WANTED).reason


def test_a_lost_connection_decides_the_round_at_once_and_comes_back(worker: FakeWorker) -> None:
    with running(worker) as loop:
        loop.up(worker)
        loop.engine.begin(1)
        worker.expect_round()
        endpoint = worker.endpoint
        worker.close()
        assert loop.engine.finish(1) is Verdict.DISCONNECTED  # the network timeout is 10 s here
        assert loop.wait_for(EventKind.LINK_DOWN).reason
        loop.engine.begin(2)
        assert loop.engine.finish(2) is Verdict.DISCONNECTED
        with fake_worker(endpoint=endpoint) as again:
            again.open()  # by itself: the same link, a new connection
            loop.wait_for(EventKind.LINK_UP, 2)
            good_round(loop, again, 3)
        assert loop.heard(EventKind.LINK_RETURNED) == []


def test_a_lost_connection_at_rest_is_seen_before_the_next_round_is_sent(worker: FakeWorker) -> None:
    with running(worker) as loop:
        loop.up(worker)
        worker.close()
        loop.wait_link(LinkState.CONNECTING)
        loop.engine.begin(1)
        assert loop.engine.finish(1) is Verdict.DISCONNECTED


def test_another_link_takes_the_place_of_the_first(worker: FakeWorker) -> None:
    with running(worker) as loop:
        loop.up(worker)
        loop.up(worker)
        assert loop.heard(EventKind.LINK_RETURNED)[0].reason == "another link was given"
        assert loop.heard(EventKind.LINK_WANTED) == []
        good_round(loop, worker, 1)


def test_a_worker_that_sends_only_nonsense_loses_the_link(worker: FakeWorker) -> None:
    with running(worker) as loop:
        loop.up(worker)
        loop.engine.begin(1)
        worker.expect_round()
        for _ in range(1100):
            worker.send(b"nonsense")
        assert loop.engine.finish(1) is Verdict.DISCONNECTED
        assert "no sense" in loop.wait_for(EventKind.LINK_WANTED).reason
        loop.up(worker)
        good_round(loop, worker, 2)


def test_nonsense_with_sense_in_between_does_not_add_up(worker: FakeWorker) -> None:
    with running(worker) as loop:
        loop.up(worker)
        for t in range(1, 5):
            for _ in range(400):
                worker.send(b"nonsense")
            good_round(loop, worker, t)
        assert loop.dropped("MALFORMED") == 1600
        assert loop.loop.link_state() is LinkState.UP


def test_an_open_that_is_none_is_not_taken(worker: FakeWorker) -> None:
    with running(worker) as loop:
        for wrong in (b"", opening()[:-1], encode_header(Kind.PING, SESSION), opening() + b"x"):
            assert loop.links is not None
            link = loop.links.make(1 << 16)
            with pytest.raises(OSError) as caught:
                link.give(loop.loop, wrong)
            assert caught.value.errno == errno.EINVAL
            link.close()


def test_a_loop_that_is_over_takes_no_link(worker: FakeWorker) -> None:
    with running(worker) as loop:
        loop.engine.lose()
        loop.wait_for(EventKind.STOPPED)
        assert loop.links is not None
        link = loop.links.make(1 << 16)
        with pytest.raises(OSError) as caught:
            link.give(loop.loop, opening())
        assert caught.value.errno == errno.ESHUTDOWN
        link.close()


def test_events_that_nobody_takes_are_bounded_and_the_end_is_still_heard(worker: FakeWorker) -> None:
    with running(worker) as loop:
        loop.up(worker)
        for t in range(1, 101):
            loop.engine.begin(t)
            worker.send(status_reply(worker.expect_round().round, Status.UNKNOWN_SESSION))
            assert loop.engine.finish(t) is Verdict.REFUSED
            worker.open()
            loop.wait_link(LinkState.UP)
        assert loop.counter("events_dropped") > 0
        loop.loop.stop(encode_header(Kind.CLOSE, SESSION))
        assert loop.last()[-2:] == ["LINK_RETURNED", "STOPPED"]


def test_close_is_sent_at_the_end(worker: FakeWorker) -> None:
    with running(worker) as loop:
        loop.up(worker)
        loop.stop()
        assert worker.expect(Kind.CLOSE).session == SESSION


def test_nobody_at_the_other_end_is_no_news() -> None:
    with running("tcp://127.0.0.1:1") as loop:
        loop.give()
        time.sleep(0.2)
        assert loop.loop.link_state() is LinkState.CONNECTING
        loop.hear()
        assert loop.events == []


def test_a_terminated_context_returns_the_link(worker: FakeWorker) -> None:
    """Somebody ends the ZMQ context under a running loop: its link is over, the loop is not."""
    with running(worker) as loop, zmq.Context() as context:
        dealer = context.socket(zmq.DEALER)
        monitor = dealer.get_monitor_socket(lib.HFD_ZMQ_EVENTS)
        dealer.connect(worker.endpoint)
        assert loop.links is not None
        transport = ffi.new("struct hfd_transport **")
        sockets = (ffi.cast("void *", dealer.underlying), ffi.cast("void *", monitor.underlying))
        assert lib.hfd_zmq_open(loop.links._zmq, *sockets, 1 << 16, transport) == 0
        loop.loop.link(transport[0], 77, opening())
        worker.open()
        loop.wait_link(LinkState.UP)
        loop.engine.begin(1)
        worker.expect_round()
        with terminating(context):
            assert loop.engine.finish(1) is Verdict.DISCONNECTED
            until(lambda: any(e.kind is EventKind.LINK_RETURNED for e in loop.loop.events()), "the link is returned")
            monitor.close(linger=0)
            dealer.close(linger=0)
        loop.engine.begin(2)
        assert loop.engine.finish(2) is Verdict.DISCONNECTED
