"""The kinds of word problem: how each asks its question and words its answer (which one, `problems.tell` decides)."""

from typing import Final

from plugin.training.data.problems import draws
from plugin.training.data.problems.kind import Kind

KINDS: Final = (
    Kind(
        "speed",
        draws.speed,
        (
            "A {who} travels {distance} {length} in {time} hours. What is its average speed?",
            "A {who} covers {distance} {length} in {time} hours. How fast does it go on average?",
            "It takes a {who} {time} hours to go {distance} {length}. Find its average speed.",
        ),
        (
            "Average speed is distance divided by time. The {who} travels {distance} {length} in {time} hours. "
            "{distance} / {time} = {speed}. The average speed is {speed} {length} per hour.",
            "To find the speed, divide the distance by the time: {distance} / {time} = {speed}. "
            "So the {who} goes {speed} {length} per hour on average.",
            "The distance is {distance} {length} and the time is {time} hours. Speed = distance / time, so "
            "{distance} / {time} = {speed}. Its average speed is {speed} {length} per hour.",
        ),
    ),
    Kind(
        "distance",
        draws.distance,
        (
            "A {who} moves at {speed} {length} per hour for {time} hours. How far does it go?",
            "How many {length} does a {who} cover in {time} hours at {speed} {length} per hour?",
            "A {who} goes {speed} {length} per hour. What distance does it travel in {time} hours?",
        ),
        (
            "Distance is speed times time. {speed} * {time} = {distance}. The {who} goes {distance} {length}.",
            "In one hour the {who} goes {speed} {length}. In {time} hours it goes {speed} * {time} = {distance} "
            "{length}. The distance is {distance} {length}.",
            "The speed is {speed} {length} per hour and the time is {time} hours. Multiply them: "
            "{speed} * {time} = {distance}. It travels {distance} {length}.",
        ),
    ),
    Kind(
        "duration",
        draws.duration,
        (
            "A {who} goes {speed} {length} per hour. How long does it need for {distance} {length}?",
            "How many hours does a {who} need to travel {distance} {length} at {speed} {length} per hour?",
            "A {who} must cover {distance} {length} at {speed} {length} per hour. How many hours does that take?",
        ),
        (
            "Time is distance divided by speed. {distance} / {speed} = {time}. The {who} needs {time} hours.",
            "Each hour the {who} covers {speed} {length}. To cover {distance} {length} it takes "
            "{distance} / {speed} = {time} hours. The answer is {time} hours.",
            "The distance is {distance} {length} and the speed is {speed} {length} per hour. Divide them: "
            "{distance} / {speed} = {time}. The trip takes {time} hours.",
        ),
    ),
    Kind(
        "total",
        draws.total,
        (
            "{who} buys {count} {things} for {price} dollars each. How much does {who} pay?",
            "One {thing} costs {price} dollars. How much do {count} {things} cost {who}?",
            "{who} wants {count} {things}. Each {thing} costs {price} dollars. What is the total price?",
        ),
        (
            "Each {thing} costs {price} dollars and {who} buys {count}. {count} * {price} = {result}. "
            "{who} pays {result} dollars.",
            "Multiply the number of {things} by the price: {count} * {price} = {result}. "
            "The {things} cost {result} dollars.",
            "There are {count} {things} at {price} dollars each, so {who} pays {count} * {price} = {result} "
            "dollars. The total is {result} dollars.",
        ),
    ),
    Kind(
        "change",
        draws.change,
        (
            "{who} buys {count} {things} for {price} dollars each and pays with {paid} dollars. "
            "How much change does {who} get?",
            "{who} has {paid} dollars and buys {count} {things} at {price} dollars each. How much money is left?",
        ),
        (
            "First find the cost: {count} * {price} = {total}. Then subtract it from {paid}: "
            "{paid} - {total} = {result}. {who} has {result} dollars left.",
            "The {things} cost {count} * {price} = {total} dollars. {who} pays {paid} dollars, so the change is "
            "{paid} - {total} = {result} dollars. The answer is {result} dollars.",
            "{count} {things} at {price} dollars each cost {total} dollars, since {count} * {price} = {total}. "
            "What remains is {paid} - {total} = {result}. {who} gets {result} dollars back.",
        ),
    ),
    Kind(
        "basket",
        draws.basket,
        (
            "{who} buys {count} {things} at {price} dollars each and {count2} {other} at {price2} dollars each. "
            "How much does {who} spend?",
            "A shop sells {things} for {price} dollars and {other} for {price2} dollars. {who} takes {count} {things} "
            "and {count2} {other}. What does {who} pay?",
        ),
        (
            "The {things} cost {count} * {price} = {total} dollars. The {other} cost {count2} * {price2} = {total2} "
            "dollars. Together that is {total} + {total2} = {result}. {who} pays {result} dollars.",
            "For the {things}: {count} * {price} = {total}. For the {other}: {count2} * {price2} = {total2}. "
            "Add both: {total} + {total2} = {result}. The total is {result} dollars.",
        ),
    ),
    Kind(
        "age",
        draws.age,
        (
            "{other} is {age} years old. {who} is {gap} years older. How old will {who} be in {years} years?",
            "{who} is {gap} years older than {other}, who is {age}. What will be the age of {who} in {years} years?",
        ),
        (
            "{who} is {gap} years older than {other}, so {who} is {age} + {gap} = {now} now. In {years} years "
            "{who} will be {now} + {years} = {result}. The answer is {result} years.",
            "Today {who} is {age} + {gap} = {now} years old. Add {years} years: {now} + {years} = {result}. "
            "{who} will be {result} years old.",
            "{other} is {age}. Add the {gap} years: {age} + {gap} = {now}. After {years} more years: "
            "{now} + {years} = {result}. So {who} will be {result}.",
        ),
    ),
    Kind(
        "times as old",
        draws.times_as_old,
        (
            "{other} is {age} years old and {who} is {times} times as old. How old are they together?",
            "{who} is {times} times as old as {other}. {other} is {age}. What is the sum of their ages?",
        ),
        (
            "{who} is {times} * {age} = {older} years old. Together they are {older} + {age} = {result} years old. "
            "The answer is {result} years.",
            "First find the age of {who}: {times} * {age} = {older}. Then add the age of {other}: "
            "{older} + {age} = {result}. The sum is {result} years.",
        ),
    ),
    Kind(
        "sharing",
        draws.sharing,
        (
            "{who} shares {count} {things} equally among {friends} friends. How many does each friend get?",
            "{friends} friends of {who} share {count} {things} equally. How many {things} does each one get?",
            "{who} puts {count} {things} into {friends} boxes, the same number in each. How many are in a box?",
        ),
        (
            "Divide the {things} into equal parts: {count} / {friends} = {result}. Each part has {result} {things}.",
            "There are {count} {things} for {friends}, and {count} / {friends} = {result}. So the answer is {result} "
            "{things} each.",
            "To share equally we divide. {count} / {friends} = {result}. That makes {result} {things} for each.",
        ),
    ),
    Kind(
        "left over",
        draws.left_over,
        (
            "{who} has {count} {things} and gives {each} to each of {friends} friends. How many are left?",
            "{who} gives {friends} friends {each} {things} each. At first there were {count} {things}. "
            "How many does {who} keep?",
        ),
        (
            "{who} gives away {friends} * {each} = {given} {things}. {count} - {given} = {result}. "
            "There are {result} {things} left.",
            "First count what is given: {friends} * {each} = {given}. Then subtract: {count} - {given} = {result}. "
            "{who} keeps {result} {things}.",
            "{friends} friends get {each} {things} each, which is {friends} * {each} = {given}. So {who} has "
            "{count} - {given} = {result} left. The answer is {result} {things}.",
        ),
    ),
    Kind(
        "discount",
        draws.discount,
        (
            "A {good} costs {price} dollars. {who} gets {percent}% off. How much does {who} pay?",
            "{who} buys a {good} for {price} dollars with a discount of {percent}%. What is the new price?",
        ),
        (
            "{percent}% of {price} is {price} * {percent} / 100 = {off}. {price} - {off} = {result}. "
            "{who} pays {result} dollars.",
            "The discount is {price} * {percent} / 100 = {off} dollars. The new price is {price} - {off} = {result} "
            "dollars. The {good} costs {result} dollars.",
        ),
    ),
    Kind(
        "minutes",
        draws.minutes,
        (
            "A {task} lasts {minutes} minutes. {who} goes to {count} of them. How many minutes is that?",
            "{who} has {count} times a {task} of {minutes} minutes. How many minutes does it take in all?",
        ),
        (
            "One {task} takes {minutes} minutes, so {count} take {count} * {minutes} = {result} minutes. "
            "The answer is {result} minutes.",
            "Multiply the number by the minutes: {count} * {minutes} = {result}. It takes {who} {result} minutes.",
        ),
    ),
    Kind(
        "perimeter",
        draws.perimeter,
        (
            "A {who} is {long} meters long and {wide} meters wide. What is its perimeter?",
            "How long is a fence around a {who} of {long} by {wide} meters?",
        ),
        (
            "The perimeter is two times the sum of length and width. {long} + {wide} = {half}. "
            "2 * {half} = {result}. The perimeter is {result} meters.",
            "Add the two sides: {long} + {wide} = {half}. Double it: 2 * {half} = {result}. "
            "It is {result} meters around the {who}.",
        ),
    ),
    Kind(
        "area",
        draws.area,
        (
            "A {who} is {long} meters long and {wide} meters wide. What is its area?",
            "How many square meters does a {who} of {long} by {wide} meters have?",
        ),
        (
            "The area is length times width. {long} * {wide} = {result}. The area is {result} square meters.",
            "Multiply the sides of the {who}: {long} * {wide} = {result}. It has {result} square meters.",
        ),
    ),
    Kind(
        "output",
        draws.output,
        (
            "A {who} makes {rate} {things} per hour and works {hours} hours a day. How many {things} does it make "
            "in {days} days?",
            "A {who} runs {hours} hours a day for {days} days and makes {rate} {things} an hour. "
            "How many {things} is that?",
        ),
        (
            "In one day the {who} makes {rate} * {hours} = {daily} {things}. In {days} days it makes "
            "{daily} * {days} = {result} {things}. The answer is {result} {things}.",
            "First one day: {rate} * {hours} = {daily}. Then {days} days: {daily} * {days} = {result}. "
            "The {who} makes {result} {things}.",
        ),
    ),
    Kind(
        "reading",
        draws.reading,
        (
            "{who} reads {daily} pages a day. How many days does a book of {pages} pages take?",
            "A book has {pages} pages and {who} reads {daily} pages every day. After how many days is it finished?",
        ),
        (
            "Divide the pages by the pages per day: {pages} / {daily} = {result}. {who} needs {result} days.",
            "{who} reads {daily} of {pages} pages each day, and {pages} / {daily} = {result}. "
            "The book takes {result} days.",
            "The book has {pages} pages. At {daily} pages a day it takes {pages} / {daily} = {result} days. "
            "So the answer is {result} days.",
        ),
    ),
    Kind(
        "collection",
        draws.collection,
        (
            "{who} has {start} {things}, finds {more} more and gives {fewer} to {other}. How many does {who} have now?",
            "{who} had {start} {things}. {who} got {more} more and then lost {fewer}. How many {things} are left?",
        ),
        (
            "{who} starts with {start} {things}. {start} + {more} = {sum}. {sum} - {fewer} = {result}. "
            "Now {who} has {result} {things}.",
            "First add: {start} + {more} = {sum}. Then subtract: {sum} - {fewer} = {result}. "
            "There are {result} {things}.",
            "With {more} more there are {start} + {more} = {sum} {things}. Without {fewer} there are "
            "{sum} - {fewer} = {result}. The answer is {result} {things}.",
        ),
    ),
    Kind(
        "saving",
        draws.saving,
        (
            "{who} has {start} dollars and saves {weekly} dollars a week. How much money is there after {weeks} weeks?",
            "{who} saves {weekly} dollars every week for {weeks} weeks and had {start} dollars before. "
            "How much does {who} have?",
        ),
        (
            "In {weeks} weeks {who} saves {weeks} * {weekly} = {saved} dollars. {saved} + {start} = {result}. "
            "{who} has {result} dollars.",
            "The savings are {weeks} * {weekly} = {saved}. Add the {start} dollars from before: "
            "{saved} + {start} = {result}. That is {result} dollars.",
        ),
    ),
    Kind(
        "part",
        draws.part,
        (
            "{who} has {count} {things} and gives away {word} of them. How many {things} does {who} keep?",
            "{who} lost {word} of {count} {things}. How many {things} are left?",
        ),
        (
            "{word} of {count} is {count} / {part} = {given}. {count} - {given} = {result}. "
            "{who} still has {result} {things}.",
            "To find {word}, divide by {part}: {count} / {part} = {given}. So {count} - {given} = {result} {things} "
            "are left. The answer is {result} {things}.",
        ),
    ),
)
