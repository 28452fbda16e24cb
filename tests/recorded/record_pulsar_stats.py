"""What Pulsar's statistics and metrics are called: recorded once, from one that runs.

    python -m benchmarks.peers record-stats

starts a Pulsar, has producers and consumers of each subscription type at work, and writes
`pulsar-stats.json`: the fields of `topics stats`, `partitioned-stats` and `stats-internal` with the
JSON type of each, and the names and labels of `/metrics/` that tell of topics. Nothing of this
repository but this file is needed; numbers and addresses are not kept.
"""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "pulsar-stats.json"
TOPICS = "persistent/public/default"
_SAMPLE = re.compile(r"^(\w+)\{([^}]*)\}")
_LABEL = re.compile(r'(\w+)="')


def main(url: str, web: str, server: str) -> None:
    import pulsar

    put(f"{web}/admin/v2/{TOPICS}/parted/partitions", 2)
    client = pulsar.Client(url)
    types = pulsar.ConsumerType
    kinds = {"exclusive": types.Exclusive, "failover": types.Failover, "shared": types.Shared}
    kinds["key-shared"] = types.KeyShared
    consumers = [
        client.subscribe(topic, name, kind)
        for topic in ("plain", "parted") for name, kind in kinds.items()
    ]  # fmt: skip
    for topic in ("plain", "parted"):
        producer = client.create_producer(topic, batching_enabled=True)
        for number in range(200):
            producer.send_async(b"%d" % number, None, partition_key=f"key-{number % 20}")
        producer.flush()
    for consumer in consumers:
        received = [consumer.receive(10_000) for _ in range(50)]
        for message in received[::2] if "shared" in consumer.subscription_name() else received:
            consumer.acknowledge(message)
    time.sleep(70)  # rates are computed once a minute
    admin = f"{web}/admin/v2/{TOPICS}"
    asked = "getPreciseBacklog=true&subscriptionBacklogSize=true&getEarliestTimeInBacklog=true"
    found: dict[str, Any] = {
        "server": server,
        "stats": shape(get(f"{admin}/plain/stats?{asked}")),
        "partitioned-stats": shape(get(f"{admin}/parted/partitioned-stats?perPartition=true")),
        "stats-internal": shape(get(f"{admin}/plain/internalStats")),
        "partitioned-stats-internal": shape(get(f"{admin}/parted/partitioned-internalStats")),
        "metrics": metrics(fetched(f"{web}/metrics/")),
    }
    client.close()
    RECORDED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def shape(value: Any) -> Any:
    """A value's fields with their JSON types; of lists and of maps by name, those of any."""
    if isinstance(value, dict):
        return {_any(name): shape(held) for name, held in sorted(value.items())}
    if isinstance(value, list):
        return [shape(each) for each in value[:1]]
    return type(value).__name__


def _any(name: str) -> str:
    """The name, or * where it is a topic's or a subscription's."""
    return (
        "*" if "://" in name or name in {"exclusive", "failover", "shared", "key-shared"} else name
    )


def metrics(text: str) -> dict[str, Any]:
    """Name -> its type and labels, of those that have a label `topic` or are of a namespace."""
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    found: dict[str, Any] = {}
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample and 'topic="persistent://public/default' in sample[2]:
            labels = found.setdefault(sample[1], {"type": types.get(sample[1]), "labels": []})
            labels["labels"] = sorted({*labels["labels"], *_LABEL.findall(sample[2])})
    return dict(sorted(found.items()))


def get(url: str) -> Any:
    return json.loads(fetched(url))


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def put(url: str, body: Any) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), method="PUT")
    request.add_header("Content-Type", "application/json")
    urllib.request.urlopen(request, timeout=30).close()


if __name__ == "__main__":
    main(*sys.argv[1:])
