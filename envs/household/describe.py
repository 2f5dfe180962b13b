"""The sentences of the game: rooms, receptacles and things, as the stock engine words them."""

from envs.household.game import Game
from envs.household.state import State


def opening_text(game: Game, state: State) -> str:
    """The first observation of an episode: room and task."""
    if game.at_location[state.location]:
        room = look_text(game, state)
    else:
        places = game.receptacles
        seen = [f"a {name}" for r, name in enumerate(places.names) if places.location[r] >= 0]
        room = _middle_of_room(seen)
    return f"-= Welcome to TextWorld, ALFRED! =-\n\n{room}\n\nYour task is to: {game.task_text}."


def look_text(game: Game, state: State) -> str:
    """What ``look`` prints: before the agent has gone anywhere, that there is nothing."""
    here = game.at_location[state.location]
    if not here:
        return _middle_of_room([])
    facing = _listed([game.receptacles.names[r] for r in here])
    beside = [
        f"a {game.objects.names[item]}"
        for item, receptacle in state.removed
        if receptacle in here and state.location in state.places[item]
    ]
    return f"You are facing the {facing}. Next to it, you see {_listed(beside)}."


def _middle_of_room(seen: list[str]) -> str:
    return f"You are in the middle of a room. Looking quickly around you, you see {_listed(seen)}."


def receptacle_text(game: Game, state: State, receptacle: int) -> str:
    """What examining a receptacle prints; opening it and arriving at it print the same."""
    name = game.receptacles.names[receptacle]
    if receptacle in game.receptacles.openable:
        if not state.opened >> receptacle & 1:
            return f"The {name} is closed."
        opening = f"The {name} is open. In it"
    else:
        opening = f"On the {name}"
    names = game.objects.names
    seen = _listed([f"a {names[item]}" for item in state.contents[receptacle]])
    return f"{opening}, you see {seen}."


def object_text(game: Game, state: State, item: int) -> str:
    """What examining a held object prints."""
    name = game.objects.names[item]
    if item in game.objects.containers:
        inside = [f"a {game.objects.names[i]}" for i in game.objects.containers[item]]
        return f"This is a normal {name}. In it, you see {_listed(inside)}."
    clean, sliced = state.clean >> item & 1, state.sliced >> item & 1
    warmth = "hot" if state.hot >> item & 1 else "cool" if state.cool >> item & 1 else ""
    if warmth == "cool" and not clean and not sliced:
        return f"This is a cold {name}."
    condition = " and ".join(filter(None, [warmth, "clean" if clean else ""]))
    if condition:
        return f"This is a {condition}{' sliced' if sliced else ''} {name}."
    if item in game.objects.toggleable and state.toggled >> item & 1:
        return f"This {name} is on."
    if sliced and item in game.objects.sliceable:
        return f"This is a sliced {name}."
    return f"There's nothing special about {name}."


def _listed(words: list[str]) -> str:
    if not words:
        return "nothing"
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])}, and {words[-1]}"
