# SPDX-License-Identifier: Apache-2.0
"""
A small memory-model checker for litmus tests in C, as herd reads them: it tries every execution there can be.

Models, by their axioms: that of C11 in its repaired form (RC11), and that of Arm's architecture (AArch64, other-multi-copy-atomic)
for the instructions that gcc makes of the same program: ``ldar``, ``stlr``, ``ldaxr``/``stlxr``, ``dmb ish``. Dependencies between
accesses are left out, so the Arm model here allows a little more than the architecture does: what it forbids is forbidden.

Values are constants. A program is straight: loads, stores, exchanges, compare-and-swaps, fences. What code does only where a load found a value, is asked for
with that value in ``exists``.
"""

from __future__ import annotations

import itertools
import re

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final


ORDERS: Final = r"memory_order_(\w+)"
STATEMENT: Final = re.compile(
    r"(?:int (?P<register>\w+) = )?atomic_(?P<op>\w+?)(?:_explicit)?\((?P<arguments>[^)]*)\);"
)
Pairs = set[tuple[int, int]]


@dataclass(frozen=True)
class Access:
    """One statement. ``orders``: of a compare-and-swap two, for success and failure."""

    op: str  # load, store, exchange, compare_exchange_strong, thread_fence
    location: str
    values: tuple[int, ...]  # store, exchange: the new one. Compare-and-swap: the expected one, the new one
    orders: tuple[str, ...]
    register: str
    place: str = ""  # in native/: file, function, name of the word there


@dataclass(frozen=True)
class Litmus:
    """A program and an outcome."""

    name: str
    about: str  # its comment
    threads: tuple[tuple[Access, ...], ...]
    outcome: tuple[tuple[int, str, int], ...]  # thread, register, value

    def with_access(self, thread: int, index: int, *new: Access) -> Litmus:
        """Return it with one access replaced, by none or by several."""
        changed = self.threads[thread][:index] + new + self.threads[thread][index + 1 :]
        return replace(self, threads=(*self.threads[:thread], changed, *self.threads[thread + 1 :]))


def parse(text: str) -> Litmus:
    """Read a file. Raises ValueError where a line is none of the statements above."""
    head = re.search(r"\AC (\S+)\s*\(\*(.*?)\*\)\s*\{\s*\}", text, re.DOTALL)
    outcome = re.search(r"^exists \((.*)\)\s*\Z", text, re.MULTILINE)
    if not head or not outcome:
        raise ValueError("a litmus test is: C NAME, a comment, { }, threads, exists")
    bodies = re.findall(r"^P\d+ \([^)]*\) \{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE)
    threads = [tuple(_access(line) for line in body.splitlines() if "int e" not in line) for body in bodies]
    wanted = re.findall(r"(\d+):(\w+)=(\d+)", outcome[1])
    return Litmus(head[1], head[2], tuple(threads), tuple((int(t), name, int(value)) for t, name, value in wanted))


def _access(line: str) -> Access:
    code, _, place = (part.strip() for part in line.partition("//"))
    found = STATEMENT.fullmatch(code)
    if not found:
        raise ValueError(f"not a statement: {line}")
    arguments = [argument.strip() for argument in found["arguments"].split(",")]
    orders = tuple(re.findall(ORDERS, found["arguments"]))
    values = tuple(int(a) for a in arguments if a.isdigit())
    location = "" if found["op"] == "thread_fence" else arguments[0]
    if found["op"].startswith("compare"):
        values = (0, *values)  # e, which is 0
    return Access(found["op"], location, values, orders, found["register"] or "", place)


@dataclass(frozen=True)
class Event:
    """Of an execution: a load, a store or a fence. An exchange is a load and, right behind it, a store that is ``paired``."""

    thread: int  # -1: the store that a location begins with
    kind: str  # R, W, F
    order: str
    location: str = ""
    value: int = 0
    paired: bool = False


Way = tuple[tuple[Event, ...], int | None]  # events of an access, what its register holds


def _ways(thread: int, a: Access, values: Sequence[int]) -> Iterator[Way]:
    """Yield what an access can turn out to be, given the values that its location ever holds."""
    order = a.orders[0]
    if a.op == "thread_fence":
        yield (Event(thread, "F", order),), None
    elif a.op == "store":
        yield (Event(thread, "W", order, a.location, a.values[0]),), None
    for value in values if a.op not in ("store", "thread_fence") else ():
        swaps = a.op == "exchange" or (a.op != "load" and value == a.values[0])
        load = Event(thread, "R", order if swaps or a.op == "load" else a.orders[1], a.location, value)
        if swaps:
            yield (
                (load, Event(thread, "W", order, a.location, a.values[-1], paired=True)),
                int(a.op != "exchange") or value,
            )
        else:
            yield (load,), value if a.op == "load" else 0


def then(*relations: Pairs) -> Pairs:
    """Return their composition."""
    joined = relations[0]
    for relation in relations[1:]:
        after: dict[int, set[int]] = {}
        for c, d in relation:
            after.setdefault(c, set()).add(d)
        joined = {(a, d) for a, b in joined for d in after.get(b, ())}
    return joined


def closure(pairs: Pairs) -> Pairs:
    closed = set(pairs)
    while more := then(closed, closed) - closed:
        closed |= more
    return closed


def cyclic(pairs: Pairs) -> bool:
    return any(a == b for a, b in closure(pairs))


class Execution:
    """Events, and the relations that each model starts from."""

    def __init__(self, events: list[Event], rf: Pairs, mo: Pairs) -> None:
        self.events, self.rf, self.mo = events, rf, mo
        numbered = list(enumerate(events))
        self.po = {
            (i, j) for i, a in numbered for j, b in numbered if i < j and a.thread in (b.thread, -1) and b.thread >= 0
        }
        self.rmw = {(i - 1, i) for i, event in numbered if event.paired}
        self.fr = {(b, d) for a, b in rf for c, d in mo if a == c}
        self.every = self.which("RWF", "")

    def which(self, kinds: str, orders: str) -> Pairs:
        """Return the events of these kinds and (where there are any) orders, each related to itself."""
        wanted = orders.split()
        return {(i, i) for i, e in enumerate(self.events) if e.kind in kinds and (not wanted or e.order in wanted)}

    def local(self, pairs: Pairs) -> Pairs:
        """Return those of one location."""
        return {(a, b) for a, b in pairs if self.events[a].location == self.events[b].location != ""}

    def external(self, pairs: Pairs) -> Pairs:
        return {(a, b) for a, b in pairs if self.events[a].thread != self.events[b].thread}

    def atomic(self) -> bool:
        """Both models: nothing comes between the load and the store of an exchange."""
        return not self.rmw & then(self.fr, self.mo)


def rc11(x: Execution) -> bool:
    """Whether C11 allows the execution."""
    every, fence, write = x.every, x.which("F", ""), x.which("W", "")
    release, acquire = x.which("WF", "release acq_rel seq_cst"), x.which("RF", "acquire acq_rel seq_cst")
    sequence = then(write | then(write, x.local(x.po), write), every | closure(then(x.rf, x.rmw)))
    sw = then(release, every | then(fence, x.po), sequence, x.rf, every | then(x.po, fence), acquire)
    hb = closure(x.po | sw)
    eco = closure(x.rf | x.mo | x.fr)
    apart = x.po - x.local(x.po)
    scb = x.po | then(apart, hb, apart) | x.local(hb) | x.mo | x.fr
    sc, sc_fence = x.which("RW", "seq_cst"), x.which("F", "seq_cst")
    psc = then(sc | then(sc_fence, every | hb), scb, sc | then(every | hb, sc_fence))
    psc |= then(sc_fence, hb | then(hb, eco, hb), sc_fence)
    return not (any(a == b for a, b in hb | then(hb, eco)) or cyclic(psc) or cyclic(x.po | x.rf))


def aarch64(x: Execution, strong: str = "acquire acq_rel seq_cst") -> bool:
    """Whether Arm allows the execution, of the instructions that gcc makes of it. ``strong``: loads that stay behind ``stlr``."""
    acquire, release = x.which("R", "acquire acq_rel seq_cst"), x.which("W", "release acq_rel seq_cst")
    full, loads = x.which("F", "release acq_rel seq_cst"), x.which("F", "acquire")  # dmb ish, dmb ishld
    bob = then(x.po, full, x.po) | then(x.which("R", ""), x.po, loads, x.po) | then(acquire, x.po) | then(x.po, release)
    bob |= then(release, x.po, x.which("R", strong))
    observed = x.external(x.rf | x.mo | x.fr)
    return not (cyclic(x.local(x.po) | x.rf | x.mo | x.fr) or cyclic(bob | x.rmw | observed))


def aarch64_ldapr(x: Execution) -> bool:
    """The same, where an acquire that is not seq_cst is ``ldapr``, as gcc makes it with -march=armv8.3-a and later."""
    return aarch64(x, "acq_rel seq_cst")


MODELS: Final[dict[str, Callable[[Execution], bool]]] = {
    "C11": rc11,
    "AArch64": aarch64,
    "AArch64, ldapr": aarch64_ldapr,
}


def _executions(events: list[Event]) -> Iterator[Execution]:
    """Yield every choice of who reads from whom, and of the order in which each location's stores are made."""
    loads = [i for i, e in enumerate(events) if e.kind == "R"]
    stores: dict[str, list[int]] = {}
    for i, e in enumerate(events):
        if e.kind == "W":
            stores.setdefault(e.location, []).append(i)
    sources = [[i for i in stores[events[r].location] if events[i].value == events[r].value] for r in loads]
    orders = [[(first, *rest) for rest in itertools.permutations(others)] for first, *others in stores.values()]
    for chosen in itertools.product(*sources):
        for made in itertools.product(*orders):
            mo = {pair for order in made for pair in itertools.combinations(order, 2)}
            yield Execution(events, set(zip(chosen, loads, strict=True)), mo)


def allowed(litmus: Litmus, model: str) -> bool:
    """Return whether the outcome can come about."""
    accesses = [(thread, a) for thread, body in enumerate(litmus.threads) for a in body]
    values: dict[str, list[int]] = {}
    for _, a in accesses:
        if a.location:
            held = values.setdefault(a.location, [0])
            held += [v for v in a.values[-1:] if v not in held]
    wanted = {(thread, register): value for thread, register, value in litmus.outcome}
    choices = []
    for thread, a in accesses:
        ways = _ways(thread, a, values.get(a.location, ()))
        choices.append([events for events, result in ways if wanted.get((thread, a.register), result) == result])
    first = [Event(-1, "W", "relaxed", location) for location in values]
    for picked in itertools.product(*choices):
        for execution in _executions([*first, *itertools.chain.from_iterable(picked)]):
            if execution.atomic() and MODELS[model](execution):
                return True
    return False
