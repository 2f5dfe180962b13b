"""Which completed sub-goals serve a task: the ground for dense rewards and labelled plans."""

from envs.household.engine import Event
from envs.household.task import Task

_TREATMENTS = {
    "pick_clean_then_place_in_recep": "cleaned",
    "pick_heat_then_place_in_recep": "heated",
    "pick_cool_then_place_in_recep": "cooled",
}


def serves(task: Task | None, event: Event | None) -> bool:
    """Whether a completed sub-goal is one that the task needs.

    Args:
        task: what the game asks for; None serves nothing.
        event: what a command completed; None is no event.

    Returns:
        True for holding or treating a thing of the task's type, placing it on a receptacle of
        the target type, and switching on the lamp. Going and opening are means, not sub-goals.
    """
    if task is None or event is None:
        return False
    item_fits = kind_of(event.item) == task.item
    if event.kind == "holds":
        return item_fits
    if event.kind == "placed":
        return item_fits and kind_of(event.receptacle) == task.target
    if event.kind == "used":
        return kind_of(event.item) == task.target
    return item_fits and event.kind == _TREATMENTS.get(task.kind)


def kind_of(name: str) -> str:
    """The kind in a name: "apple" of "apple 2"."""
    return name.rpartition(" ")[0]
