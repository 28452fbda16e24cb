"""The documentation's definitions of schemas: enums, complex types, and what they become."""

import enum
import json
import os

import pulsar
from pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    Bytes,
    Double,
    Float,
    Integer,
    JsonSchema,
    Long,
    Map,
    Record,
    String,
)

URL, TOPIC = os.environ["PULSAR_URL"], os.environ["PULSAR_TOPIC"]


class Color(enum.Enum):
    red = 1
    green = 2
    blue = 3


class MySubRecord(Record):  # type: ignore[misc]
    x = Integer()
    y = Long()
    z = String()


class Example(Record):  # type: ignore[misc]
    name = String(required=True)
    count = Integer(default=5)
    ratio = Float()
    exact = Double()
    raw = Bytes()
    flag = Boolean()
    color = Color
    sub = MySubRecord()
    names = Array(String())
    subs = Array(MySubRecord())
    numbers = Map(Integer())


print(json.dumps(Example.schema(), indent=1))
example = Example(
    name="Hello",
    exact=0.5,
    raw=b"x",
    flag=True,
    color=Color.green,
    sub=MySubRecord(x=1, y=2, z="3"),
    names=["a", "b"],
    subs=[MySubRecord(x=4)],
    numbers={"one": 1},
)
client = pulsar.Client(URL)
for kind in (JsonSchema, AvroSchema):
    schema = kind(Example)
    consumer = client.subscribe(f"{TOPIC}-{kind.__name__}", "my-subscription", schema=schema)
    client.create_producer(f"{TOPIC}-{kind.__name__}", schema=schema).send(
        Example(**{name: getattr(example, name) for name in ("name", "exact", "flag", "color")})
        if kind is JsonSchema
        else example
    )
    msg = consumer.receive()
    value = msg.value()
    print(value.name, value.count, value.ratio, value.exact, value.raw, value.flag, value.color)
    print(value.sub and value.sub.z, value.names, value.numbers)
    data = json.loads(msg.data()) if kind is JsonSchema else len(msg.data())
    print(data, repr(msg.schema_version()))
client.close()
