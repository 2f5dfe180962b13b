"""What a planner model has said and read of one text game, made to fit its context."""

from jaxagent.models.llm.words import Tokenizer
from jaxagent.text import Notes, TextFormat


class History:
    """The tokens of one episode: opening, then turns of (reply, observation and marker).

    Args (of the constructor):
        opening: the first observation.
        tokenizer: whose tokens they are.
        style: how everything is written.

    Attributes:
        opening: with the marker before the first reply.
        turns: since the opening, or since the last that was dropped.
        is_cut: whether the opening says less of the place than was printed.
    """

    def __init__(self, opening: str, tokenizer: Tokenizer, style: TextFormat) -> None:
        self._encode, self._style = tokenizer.encode, style
        self._text = opening
        self._notes = self._style.notes(opening)
        self.opening = self._opened(opening, self._notes)
        self.turns: list[list[int]] = []
        self.is_cut = self._has_replied = False
        self._read = 0  # tokens of the history that are in the cache

    def read(self, observation: str) -> None:
        """Takes in what was printed; before the first reply that is the opening, known already."""
        if not self._has_replied:
            return
        self._notes.read(observation)
        self.turns[-1] += list(self._encode(self._style.observation(observation)))
        self.turns[-1] += list(self._encode(self._notes.marker()))

    def say(self, ids: list[int]) -> None:
        """Takes in a reply, all but its last token as read."""
        self._has_replied = True
        self.turns.append(list(ids))
        # The last token of a reply is said but not read: nothing depends on it until the next.
        self._read += max(len(ids) - 1, 0)

    def fit(self, slots: int, reply: int) -> bool:
        """Drop the oldest turns if the history has outgrown the room, then as much of the opening.

        Args:
            slots: tokens that there is room for.
            reply: of these, tokens that the next reply may need.

        Returns:
            Whether it had.

        Raises:
            ValueError: the task alone has outgrown it.
        """
        room = slots - reply
        if len(self.opening) + sum(map(len, self.turns)) <= room:
            return False
        while self.turns and len(self.opening) + sum(map(len, self.turns)) > room * 3 // 4:
            self.turns.pop(0)
        if len(self.opening) > room:
            self._cut_opening(room)
        if len(self.opening) > room:
            raise ValueError(
                f"an episode's task has {len(self.opening)} tokens and a reply up to {reply}: more "
                f"than the context of {slots}, even without any turns"
            )
        self._read = 0
        return True

    def take_pending(self) -> tuple[list[int], int]:
        """Tokens that have yet to be read, and where they begin; from now on they are read."""
        history = self.opening + [token for turn in self.turns for token in turn]
        pending, start = history[self._read :], self._read
        self._read = len(history)
        return pending, start

    def _opened(self, text: str, notes: Notes) -> list[int]:
        return [*self._encode(self._style.opening(text)), *self._encode(notes.marker())]

    def _cut_opening(self, room: int) -> None:
        """Say less of the place, never of the task, and leave half the room for turns."""
        place, asks, task = self._text.rpartition(self._style.task_prefix)
        words, notes = place.split(" "), self._notes
        while words and len(self.opening) > room // 2:
            words = words[: len(words) // 2]
            place = f"{' '.join(words).rstrip(',')}.\n\n" if words else ""
            text = place + asks + task
            notes = self._style.notes(text)
            self.opening = self._opened(text, notes)
        if not self._has_replied:
            self._notes = notes
        self.is_cut = True
