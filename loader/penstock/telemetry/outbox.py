"""What is to be sent and what may have to be sent again. Plain objects: no clock, no connection, no thread.

Why nothing is lost in a short outage, and every loss is counted once:

1. Sequenced messages are numbered without holes. The outbox keeps `[first, next)`; of these, `[first, cursor)` went to
   a connection and `[cursor, next)` did not yet.
2. A message leaves the outbox when the backend acknowledged it, or as the oldest one when the outbox is full.
3. One that leaves by fullness at or beyond the cursor was never sent: it is lost, and counted at once.
4. One that leaves by fullness before the cursor may or may not have arrived: it is `unsure`. An acknowledgement
   settles it; else the next welcome decides: what lies beyond the last message that the backend has is lost, and
   counted then. Messages leave in order, so a few ranges describe all unsure ones.
5. A welcome puts the cursor back to the first message that the backend does not have.
"""

from __future__ import annotations

from collections import deque

MOST_MESSAGES = 3000
"""Ten minutes at 5 Hz."""
MOST_BYTES = 4 << 20
OVERHEAD = 128
"""What keeping one message costs beside its content, about, in bytes."""
MOST_ANSWERS = 256
MOST_RANGES = 64
"""Of unsure messages. With more, which takes a backend that reads too slowly and never acknowledges, the oldest are
taken to have arrived."""


class Outbox:
    """Sequenced messages until they are acknowledged: at most `most_messages`, in at most `most_bytes`."""

    def __init__(self, most_messages: int = MOST_MESSAGES, most_bytes: int = MOST_BYTES) -> None:
        self.next_seq = 0
        """The number that the next message must carry."""
        self.dropped = 0
        """Messages lost so far."""
        self.size = 0
        """Bytes kept, overhead included."""
        self._most_messages = most_messages
        self._most_bytes = most_bytes
        self._kept: dict[int, bytes] = {}
        self.first = 0
        """The oldest message kept; the ones before it were acknowledged or had to go."""
        self._cursor = 0
        self._unsure: deque[range] = deque(maxlen=MOST_RANGES)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def last_sent(self) -> int:
        """The last message that went to this connection or to one before it; -1: none."""
        return self._cursor - 1

    @property
    def waiting(self) -> int:
        """Messages that this connection has not been given."""
        return self.next_seq - self._cursor

    def add(self, message: bytes) -> int:
        """Take in the message that carries `next_seq`."""
        seq = self.next_seq
        self.next_seq += 1
        self._kept[seq] = message
        self.size += len(message) + OVERHEAD
        while len(self._kept) > self._most_messages or (self.size > self._most_bytes and len(self._kept) > 1):
            self._evict()
        return seq

    def take(self) -> bytes | None:
        """The next message for this connection, which stays here until it is acknowledged."""
        if self._cursor >= self.next_seq:
            return None
        message = self._kept[self._cursor]
        self._cursor += 1
        return message

    def acknowledge(self, seq: int) -> None:
        """Everything up to `seq` is stored. What was never sent cannot be."""
        seq = min(seq, self._cursor - 1)
        while self.first <= seq:
            self._remove_first()
        while self._unsure and self._unsure[0].start <= seq:
            first = self._unsure.popleft()
            if first.stop > seq + 1:
                self._unsure.appendleft(range(seq + 1, first.stop))

    def resume(self, last_seq: int) -> None:
        """A new connection, whose other side has everything up to `last_seq`."""
        self.acknowledge(last_seq)
        self.dropped += sum(map(len, self._unsure))
        self._unsure.clear()
        self._cursor = self.first

    def _evict(self) -> None:
        seq = self.first
        self._remove_first()
        if seq >= self._cursor:
            self.dropped += 1
            self._cursor = seq + 1
        elif self._unsure and self._unsure[-1].stop == seq:
            self._unsure[-1] = range(self._unsure[-1].start, seq + 1)
        else:
            self._unsure.append(range(seq, seq + 1))

    def _remove_first(self) -> None:
        self.size -= len(self._kept.pop(self.first)) + OVERHEAD
        self.first += 1


class Answers:
    """Outcomes of commands. They have no number and are not acknowledged themselves; but a connection keeps its order,
    so the acknowledgement of a message that was sent after an answer is one for the answer too. Until then a new
    connection sends it again: the backend ignores what it knows already.
    """

    def __init__(self, most: int = MOST_ANSWERS) -> None:
        self._fresh: deque[bytes] = deque(maxlen=most)
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=most)

    def __len__(self) -> int:
        return len(self._fresh) + len(self._sent)

    @property
    def waiting(self) -> int:
        """Answers that this connection has not been given."""
        return len(self._fresh)

    def add(self, answer: bytes) -> None:
        self._fresh.append(answer)

    def take(self, last_sent: int) -> bytes | None:
        """The next answer to send; `last_sent` is the last sequenced message that went before it."""
        if not self._fresh:
            return None
        answer = self._fresh.popleft()
        self._sent.append((last_sent, answer))
        return answer

    def acknowledge(self, seq: int) -> None:
        while self._sent and self._sent[0][0] < seq:
            self._sent.popleft()

    def resume(self) -> None:
        """A new connection: say again what may not have arrived, before what was not said yet."""
        again = [answer for _, answer in self._sent] + list(self._fresh)
        self._sent.clear()
        self._fresh.clear()
        self._fresh.extend(again)
