"""The newest profile of a loader, as its parts come: for whoever judges what limits it."""

from __future__ import annotations

from ..protocol import ProfilePart
from .profile import Profile


class LatestProfile:
    """Puts the newest profile of a loader together from its parts."""

    def __init__(self) -> None:
        self.profile: Profile | None = None
        """As far as it has come; None: there is none, or its beginning was missed."""

    def note(self, part: ProfilePart) -> None:
        """A part has come, in order."""
        if part.part == 0:
            self.profile = Profile(part.profile, part.began, part.rate)
        if self.profile is None or self.profile.id != part.profile:
            return
        try:
            self.profile.add(part)
        except ValueError:  # one before it was lost
            self.profile = None
