# SPDX-License-Identifier: Apache-2.0
"""Which n-grams occurred in a sequence of tokens, and where last: grown and shrunk at its end, never scanned."""

from __future__ import annotations

import struct

from typing import Final


_pack = struct.Struct("<i").pack
_GAP: Final = b""


class NGrams:
    """
    A sequence of tokens with an index of its n-grams, 1 <= n <= longest. No n-gram reaches across a gap.

    An n-gram is indexed only once the (n-1)-gram at its end has occurred twice: until then the shorter one already names
    the only place. That keeps about two entries a token instead of ``longest``. Pushing and popping cost O(longest).
    """

    def __init__(self, longest: int = 8) -> None:
        self._longest = longest
        self._tokens: list[bytes] = []  # 4 bytes a token, _GAP for a gap
        self._ends: dict[bytes, int] = {}  # n-gram -> index of its last token at its newest occurrence
        self._before: list[tuple[int, ...]] = []  # for each token: the occurrences that it replaced in _ends, by n

    def __len__(self) -> int:
        return len(self._tokens)

    def push(self, token: int) -> None:
        """Append a token."""
        tokens, ends = self._tokens, self._ends
        last = len(tokens)
        tokens.append(_pack(token))
        before: list[int] = []
        gram = b""
        for at in range(last, max(last - self._longest, -1), -1):
            if tokens[at] == _GAP:
                break
            gram = tokens[at] + gram
            seen = ends.get(gram)
            ends[gram] = last
            if seen is None:
                break
            before.append(seen)
            # Seen twice now, so the place it had for itself needs the next longer one to stay apart from this one.
            next_at = seen - len(before)
            if len(before) < self._longest and next_at >= 0 and tokens[next_at] != _GAP:
                ends.setdefault(tokens[next_at] + gram, seen)
        self._before.append(tuple(before))

    def push_gap(self) -> None:
        """Append a gap: tokens that are not known."""
        self._tokens.append(_GAP)
        self._before.append(())

    def pop(self) -> None:
        """Take the last token or gap away: the index is as if it had never come."""
        tokens, ends = self._tokens, self._ends
        before = self._before.pop()
        gram = b""
        for n, at in enumerate(range(len(tokens) - 1, max(len(tokens) - 1 - self._longest, -1), -1)):
            if tokens[at] == _GAP:
                break
            gram = tokens[at] + gram
            if n < len(before):
                ends[gram] = before[n]
            elif ends.pop(gram, None) is None:
                break
        tokens.pop()

    def newest(self, following: int) -> int | None:
        """
        Find the longest n-gram that ends the sequence with ``following`` appended and that occurs in the sequence.

        Returns the index of its last token at its newest occurrence, None where not even the token alone occurs.
        """
        gram = _pack(following)
        found = self._ends.get(gram)
        place = found
        at = len(self._tokens) - 1
        for _ in range(self._longest - 1):
            if place is None or at < 0 or self._tokens[at] == _GAP:
                break
            gram = self._tokens[at] + gram
            place = self._ends.get(gram)
            found = found if place is None else place
            at -= 1
        return found

    def copy(self, start: int, count: int, following: int) -> list[int]:
        """
        Read up to ``count`` tokens from index ``start`` of the sequence with ``following`` appended; stops at a gap.

        What is read counts as appended too, so a sequence that repeats itself is read round and round.
        """
        past_end = [following]
        read: list[int] = []
        for at in range(start, start + count):
            if at < len(self._tokens):
                if self._tokens[at] == _GAP:
                    break
                token = int.from_bytes(self._tokens[at], "little", signed=True)
            else:
                token = past_end[at - len(self._tokens)]
            read.append(token)
            past_end.append(token)
        return read
