# SPDX-License-Identifier: Apache-2.0
"""What libzmq is told to connect to: an address, and nothing while a name has none."""

from __future__ import annotations

import contextlib
import threading

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import zmq

from proxyd_harness import free_port, until
from proxyd_worker import Worker

from proxyd.errors import StartError
from proxyd.links.addresses import Address, Addresses, Turn
from proxyd.links.link import Links
from proxyd.links.names import Names, UnresolvedError


@pytest.mark.parametrize(
    ("endpoint", "ipv6"),
    [
        ("tcp://10.0.0.5:5741", False),
        ("tcp://[::1]:5741", True),
        ("tcp://[fe80::1%eth0]:5741", True),
        ("ipc:///run/w", False),
        ("ipc://@name:1", False),
        ("inproc://w", False),
    ],
)
def test_what_has_no_name_in_it_stays_as_it_is(endpoint: str, ipv6: bool) -> None:
    def resolve(name: str) -> Sequence[str]:
        raise AssertionError(name)

    assert Addresses(Names(resolve)).of(endpoint) == (Address(endpoint, ipv6=ipv6),)


def known(names: Names, name: str) -> None:
    """Wait until the answer is there."""

    def there() -> bool:
        with contextlib.suppress(UnresolvedError):
            return bool(names.addresses(name))
        return False

    until(there, f"{name} is resolved")


def test_a_name_leads_to_its_addresses() -> None:
    names = Names(lambda _name: ["127.0.0.1", "::1"])
    known(names, "drafter-1")
    four, six = Addresses(names).of("tcp://drafter-1:5741")
    assert (four.text, four.ipv6) == ("tcp://127.0.0.1:5741", False)
    assert (six.text, six.ipv6) == ("tcp://[::1]:5741", True)


@pytest.mark.parametrize(
    "host", ["a b", "a*", "a;b", "_a", "-a", ".a", "é", "[name]", "[::1]:0;[::1]", "eth0;10.0.0.1"]
)
def test_what_can_be_no_host_is_refused_without_asking_for_it(host: str) -> None:
    def resolve(name: str) -> Sequence[str]:
        raise AssertionError(name)

    with pytest.raises(StartError, match="neither an address nor the name of a host"):
        Links(f"tcp://{host}:1", names=Names(resolve))


class Hanging:
    """A resolver without an answer until the end of the test, but for names that have one."""

    def __init__(self) -> None:
        self.asked = 0
        self.over = threading.Event()

    def __call__(self, name: str) -> Sequence[str]:
        self.asked += 1
        self.over.wait()
        return ["127.0.0.1"]


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.over.set()
    until(lambda: not any(each.name == "dsv41-name" for each in threading.enumerate()), "the question ends")


def held() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def nothing(_endpoint: str, _reason: str) -> None:
    pass


def test_a_name_without_an_answer_costs_no_socket_and_holds_nobody_up(hanging: Hanging, short_dir: Path) -> None:
    links = Links("tcp://hangs:1", names=Names(hanging))
    assert hanging.asked == 0, "a check asks for nothing"
    with Worker(f"ipc://{short_dir}/w"), links.probe(f"ipc://{short_dir}/w", nothing) as healthy:
        until(healthy.answered, "it is connected")
        before = held()
        probes = [links.probe("tcp://hangs:1", nothing) for _ in range(50)]
        assert not any(probe.answered() for probe in probes)
        assert held() == before
        assert probes[0].fault == "the name hangs is not resolved: no answer yet"
        for probe in probes:
            probe.close()
        with links.probe(f"ipc://{short_dir}/w", nothing) as another:
            until(another.answered, "the other endpoint answers")
    link = links.make(1 << 16)
    assert link.address is None
    assert link.unresolved == "the name hangs is not resolved: no answer yet"
    link.close()
    links.close()  # ends the context, which waits for libzmq's threads
    assert hanging.asked == 1


def test_a_probe_asks_as_soon_as_the_name_is_resolved(hanging: Hanging) -> None:
    port = free_port()
    with Worker(f"tcp://127.0.0.1:{port}"):
        links = Links(f"tcp://w:{port}", names=Names(hanging))
        with links.probe(f"tcp://w:{port}", nothing) as probe:
            assert not probe.answered()
            hanging.over.set()
            until(probe.answered, "an answer")
            assert probe.fault is None
        links.close()


def test_all_addresses_of_a_name_are_probed_and_the_one_that_answers_is_linked_first() -> None:
    names = Names(lambda _name: ["127.0.0.2", "127.0.0.1"])
    port = free_port()
    endpoint = f"tcp://w:{port}"
    with Worker(f"tcp://127.0.0.1:{port}"):
        links = Links(endpoint, names=names)
        known(names, "w")
        turn = Turn()
        first, second, third = (links.make(1 << 16, turn) for _ in range(3))
        texts = [link.address.text for link in (first, second, third) if link.address]
        assert texts == [f"tcp://127.0.0.{n}:{port}" for n in (2, 1, 2)], "in turn"
        with links.probe(endpoint, nothing) as probe:
            until(probe.answered, "an answer")
        link = links.make(1 << 16)
        assert link.address
        assert link.address.text == f"tcp://127.0.0.1:{port}"
        for each in (first, second, third, link):
            each.close()
        links.close()


def test_what_is_wrong_with_one_address_of_a_name_is_not_said_of_the_name() -> None:
    assert Address("tcp://10.0.0.1:1", name="w", host="10.0.0.1").blamed("no") == "no (at tcp://10.0.0.1:1)"
    assert Address("tcp://10.0.0.1:1").blamed("no") == "no"


def test_each_address_has_its_turn_whatever_their_order_becomes() -> None:
    a, b, c = (Address(f"tcp://10.0.0.{n}:1", name="w", host=f"10.0.0.{n}") for n in range(3))
    turn = Turn()
    assert turn.next([a, b, c]) == a
    assert turn.next([b, a, c]) == b, "a probe has heard it"
    assert turn.next([b, a, c]) == c
    assert turn.next([b, a, c]) == b
    assert turn.next([a]) == a, "what is no address of the name any more has no turn"
    assert turn.next([a]) == a
    assert turn.next([a, b]) == b


@pytest.mark.parametrize(("address", "ipv6"), [("tcp://127.0.0.1:1", 0), ("tcp://[::1]:1", 1), ("ipc://@none", 0)])
def test_ipv6_is_switched_on_only_for_it(address: str, ipv6: int) -> None:
    context = zmq.Context()
    with context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        [found] = Addresses(Names()).of(address)
        with contextlib.suppress(zmq.ZMQError):  # a machine without IPv6
            found.connect(dealer)
        assert dealer.getsockopt(zmq.IPV6) == ipv6
