"""How each kind of word problem draws its numbers and words.

A draw gives every field that the kind's wordings need, results of the steps included, so that a wording never computes.
`who` is the word whose place in its list chooses the wording (see `generate.tell`), `result` the number asked for where
`kinds.toml` names no other field.
"""

from __future__ import annotations

import random
from typing import Final

from plugin.training.data.problems import words

Fields = dict[str, str | int]


def trip(rng: random.Random) -> Fields:
    """Speed, time and distance, one of them asked."""
    time = rng.randint(2, 9)
    speed = rng.choice((5, 10, 12, 15, 20, 25, 30, 40, 45, 50, 60, 70, 80, 90))
    vehicle = rng.choice(words.VEHICLES)
    return {
        "who": vehicle,
        "length": rng.choice(words.LENGTHS),
        "time": time,
        "speed": speed,
        "distance": time * speed,
    }


def purchase(rng: random.Random) -> Fields:
    """One purchase, its price asked."""
    things = rng.choice(words.THINGS)
    count, price = rng.randint(2, 9), rng.randint(2, 9)
    return {
        "who": rng.choice(words.NAMES),
        "things": things,
        "thing": words.SINGULAR[things],
        "count": count,
        "price": price,
        "total": count * price,
    }


def change(rng: random.Random) -> Fields:
    """One purchase and the note it is paid with, the change asked."""
    fields = purchase(rng)
    total = int(fields["total"])
    paid = rng.choice([note for note in (20, 50, 100) if note > total])
    return {**fields, "paid": paid, "result": paid - total}


def basket(rng: random.Random) -> Fields:
    """Two purchases, their price asked."""
    first = purchase(rng)
    others = [things for things in words.THINGS if things != first["things"]]
    other, count, price = rng.choice(others), rng.randint(2, 6), rng.randint(2, 6)
    bill = count * price
    return {
        **first,
        "other": other,
        "count2": count,
        "price2": price,
        "total2": bill,
        "result": int(first["total"]) + bill,
    }


def age(rng: random.Random) -> Fields:
    """Two people, an age in some years asked."""
    who, other = rng.sample(words.NAMES, 2)
    age, gap, years = rng.randint(5, 30), rng.randint(2, 9), rng.randint(2, 9)
    return {
        "who": who,
        "other": other,
        "age": age,
        "gap": gap,
        "years": years,
        "now": age + gap,
        "result": age + gap + years,
    }


def times_as_old(rng: random.Random) -> Fields:
    """Two people, the sum of their ages asked."""
    who, other = rng.sample(words.NAMES, 2)
    age, times = rng.randint(3, 12), rng.randint(2, 5)
    return {
        "who": who,
        "other": other,
        "age": age,
        "times": times,
        "older": age * times,
        "result": age * times + age,
    }


def sharing(rng: random.Random) -> Fields:
    """Equal parts."""
    friends, each = rng.randint(2, 9), rng.randint(2, 12)
    return {
        "who": rng.choice(words.NAMES),
        "things": rng.choice(words.THINGS),
        "friends": friends,
        "count": friends * each,
        "result": each,
    }


def left_over(rng: random.Random) -> Fields:
    """What remains after giving the same to each."""
    friends, each, rest = rng.randint(2, 9), rng.randint(2, 9), rng.randint(1, 20)
    given = friends * each
    return {
        "who": rng.choice(words.NAMES),
        "things": rng.choice(words.THINGS),
        "friends": friends,
        "each": each,
        "given": given,
        "count": given + rest,
        "result": rest,
    }


def discount(rng: random.Random) -> Fields:
    """A price less some percent."""
    price, percent = rng.randint(2, 20) * 10, rng.choice((10, 20, 30, 40, 50))
    off = price * percent // 100
    return {
        "who": rng.choice(words.NAMES),
        "good": rng.choice(words.GOODS),
        "price": price,
        "percent": percent,
        "off": off,
        "result": price - off,
    }


def minutes(rng: random.Random) -> Fields:
    """Repeated lessons, their minutes asked."""
    minutes, count = rng.choice((10, 15, 20, 25, 30, 40, 45, 50)), rng.randint(2, 9)
    return {
        "who": rng.choice(words.NAMES),
        "task": rng.choice(words.TASKS),
        "minutes": minutes,
        "count": count,
        "result": minutes * count,
    }


def perimeter(rng: random.Random) -> Fields:
    """Around a rectangle, in meters."""
    long, wide = rng.randint(5, 30), rng.randint(2, 20)
    return {
        "who": rng.choice(words.PLACES),
        "long": long,
        "wide": wide,
        "half": long + wide,
        "result": 2 * (long + wide),
    }


def area(rng: random.Random) -> Fields:
    """Of a rectangle, in square meters."""
    long, wide = rng.randint(3, 12), rng.randint(2, 12)
    return {"who": rng.choice(words.PLACES), "long": long, "wide": wide, "result": long * wide}


def output(rng: random.Random) -> Fields:
    """Things made per hour, over hours and days."""
    rate, hours, days = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 5)
    return {
        "who": rng.choice(words.MACHINES),
        "things": rng.choice(words.THINGS),
        "rate": rate,
        "hours": hours,
        "days": days,
        "daily": rate * hours,
        "result": rate * hours * days,
    }


def reading(rng: random.Random) -> Fields:
    """Pages at a steady pace, days asked."""
    daily, days = rng.choice((4, 5, 6, 8, 10, 12, 15, 20)), rng.randint(3, 12)
    return {"who": rng.choice(words.NAMES), "daily": daily, "pages": daily * days, "result": days}


def collection(rng: random.Random) -> Fields:
    """A sum and a difference."""
    who, other = rng.sample(words.NAMES, 2)
    start, more = rng.randint(5, 50), rng.randint(2, 40)
    fewer = rng.randint(2, start - 1)
    return {
        "who": who,
        "other": other,
        "things": rng.choice(words.THINGS),
        "start": start,
        "more": more,
        "fewer": fewer,
        "sum": start + more,
        "result": start + more - fewer,
    }


def saving(rng: random.Random) -> Fields:
    """Weekly savings on top of a start."""
    weekly, weeks, start = rng.randint(2, 12), rng.randint(2, 9), rng.randint(3, 40)
    return {
        "who": rng.choice(words.NAMES),
        "weekly": weekly,
        "weeks": weeks,
        "start": start,
        "saved": weekly * weeks,
        "result": weekly * weeks + start,
    }


def part(rng: random.Random) -> Fields:
    """What remains after a simple fraction is gone."""
    word, part = rng.choice((("half", 2), ("a third", 3), ("a quarter", 4), ("a fifth", 5)))
    each = rng.randint(2, 12)
    return {
        "who": rng.choice(words.NAMES),
        "things": rng.choice(words.THINGS),
        "word": word,
        "part": part,
        "count": part * each,
        "given": each,
        "result": part * each - each,
    }


_ALL = (
    trip, purchase, change, basket, age, times_as_old, sharing, left_over, discount, minutes, perimeter, area,
    output, reading, collection, saving, part,
)  # fmt: skip
DRAWS: Final = {draw.__name__: draw for draw in _ALL}
"""By the names that `kinds.toml` calls them."""
