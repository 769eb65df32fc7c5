"""Names, things and units that the word problems of the demo are told with.

The lists are short on purpose: a verifier of two million parameters has to learn every one of them.
"""

from __future__ import annotations

from typing import Final

NAMES: Final = (
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Ivy", "Jack", "Kate", "Leo",
    "Maria", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tina", "Victor",
)  # fmt: skip

VEHICLES: Final = ("train", "bus", "car", "truck", "boat", "van", "cyclist", "plane")

THINGS: Final = (
    "apples", "books", "pens", "cards", "stamps", "shells", "cookies", "marbles", "stickers", "oranges",
    "pencils", "flowers",
)  # fmt: skip

SINGULAR: Final = {
    "apples": "apple", "books": "book", "pens": "pen", "cards": "card", "stamps": "stamp", "shells": "shell",
    "cookies": "cookie", "marbles": "marble", "stickers": "sticker", "oranges": "orange", "pencils": "pencil",
    "flowers": "flower",
}  # fmt: skip

LENGTHS: Final = ("miles", "kilometers")

GOODS: Final = ("jacket", "lamp", "bag", "chair", "radio", "watch")

PLACES: Final = ("garden", "room", "field", "yard")

MACHINES: Final = ("machine", "printer", "robot", "press")

TASKS: Final = ("lesson", "class", "show", "game")

OPENERS: Final = (
    "Let us work it out step by step.",
    "We can solve this in small steps.",
    "This takes only a few steps.",
    "Here is one way to see it.",
)
