"""How an agent and training prove to each other that they know the token, before either unpickles anything.

1. The agent sends its greeting: who it is, and a number that it has never used.
2. Training answers with a number of its own and HMAC(token, "training", both numbers).
3. The agent checks that and answers with one byte, and HMAC(token, "agent", both numbers), which training checks.

The token itself never travels, and what was overheard is of no use for another connection. All three have a fixed size,
so that nobody can make the other side keep more than that.
"""

from __future__ import annotations

import hmac
import secrets

GREETING = b"PENSTOCK AGENT 1\n"
"""The number is that of what follows: of these messages and of `messages`."""
NONCE = 32
MAC = 32
GREETING_SIZE = len(GREETING) + NONCE
ANSWER_SIZE = NONCE + MAC
VERDICT_SIZE = 1 + MAC
ACCEPTED, REFUSED = b"\1", b"\0"


class HandshakeError(Exception):
    """The other side is not who it should be; the text says why, for a person."""


def greeting() -> bytes:
    """What the agent sends first."""
    return GREETING + secrets.token_bytes(NONCE)


def answer(token: bytes, greeted: bytes) -> bytes:
    """What training answers. Raises HandshakeError if it was not an agent that greeted."""
    if not greeted.startswith(GREETING):
        speaks = greeted.startswith(GREETING[:15])
        raise HandshakeError("it is an agent of another version of Penstock" if speaks else "it is not an agent")
    ours = secrets.token_bytes(NONCE)
    return ours + _proof(token, b"training", greeted[len(GREETING) :], ours)


def verdict(token: bytes, greeted: bytes, answered: bytes) -> bytes:
    """What the agent makes of that. Begins with `ACCEPTED` or `REFUSED`."""
    theirs, ours = greeted[len(GREETING) :], answered[:NONCE]
    if not hmac.compare_digest(answered[NONCE:], _proof(token, b"training", theirs, ours)):
        return REFUSED + bytes(MAC)
    return ACCEPTED + _proof(token, b"agent", theirs, ours)


def check(token: bytes, greeted: bytes, answered: bytes, judged: bytes) -> None:
    """Training's last look. Raises HandshakeError if the agent does not know the token, or says that we do not."""
    if judged[:1] != ACCEPTED:
        raise HandshakeError("it was started with another token")
    if not hmac.compare_digest(judged[1:], _proof(token, b"agent", greeted[len(GREETING) :], answered[:NONCE])):
        raise HandshakeError("it does not know the token")


def _proof(token: bytes, who: bytes, agents: bytes, trainings: bytes) -> bytes:
    return hmac.digest(token, who + b"\0" + agents + trainings, "sha256")
