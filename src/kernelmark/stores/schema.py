"""The schema for queries. The migrations create it; a test checks that both agree.

A series is a case on an architecture: (`cases`, `results.arch`). Columns of `results` are what
queries select and sort by; `detail` holds everything else, exactly (see packing). Where SQL cannot
hold a value (nan, NUL), the column is NULL or cleaned, and `detail` has the exact value.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

VERSION_KEY = "schema"
APPLICATION_ID = 0x6B6D726B  # "kmrk", in the header of SQLite stores

metadata = MetaData()
# SQLite assigns row numbers only to a column of type INTEGER.
Number = BigInteger().with_variant(Integer(), "sqlite")

meta = Table("meta", metadata, Column("key", Text, primary_key=True), Column("value", Text))

environments = Table(
    "environments",
    metadata,
    Column("no", Number, primary_key=True),
    Column("fingerprint", Text, nullable=False, unique=True),
    Column("document", Text, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("no", Number, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("started", Double, nullable=False, index=True),
    Column("finished", Double),
    Column("label", Text, nullable=False, index=True),
    Column("suite", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("cases", Number, nullable=False),
    Column("environment_no", ForeignKey("environments.no"), nullable=False),
    Column("document", Text, nullable=False),
)

problems = Table(
    "problems",
    metadata,
    Column("no", Number, primary_key=True),
    Column("key", Text, nullable=False, unique=True),
    Column("op", Text, nullable=False, index=True),
)

timings = Table(
    "timings",
    metadata,
    Column("no", Number, primary_key=True),
    Column("document", Text, nullable=False, unique=True),
)

cases = Table(
    "cases",
    metadata,
    Column("no", Number, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("problem_no", ForeignKey("problems.no"), nullable=False, index=True),
    Column("backend", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("timing", Text, nullable=False),
)

results = Table(
    "results",
    metadata,
    Column("no", Number, primary_key=True),
    Column("run_no", ForeignKey("runs.no"), nullable=False),
    Column("case_no", ForeignKey("cases.no"), nullable=False),
    Column("device", Text, nullable=False),
    Column("process", Number, nullable=False),
    Column("arch", Text, nullable=False),
    Column("timing_no", ForeignKey("timings.no"), nullable=False),
    Column("status", Text, nullable=False),
    Column("median_s", Double),
    Column("low_s", Double),
    Column("high_s", Double),
    Column("flops", Double, nullable=False),
    Column("bytes", Double, nullable=False),
    Column("started", Double),
    Column("error", Text, nullable=False),
    Column("detail", LargeBinary, nullable=False),
    Column("modes", Text),  # [[seconds, share], …] as JSON, if there are several
    Column("metrics", Text),  # [[name, value, unit, better], …] of headlines, if any
    Column("doubt", Text),  # the reason, as JSON, why the median is unreliable, if it is
    UniqueConstraint("run_no", "case_no", "device", "process"),
)

pins = Table(
    "pins",
    metadata,
    Column("name", Text, primary_key=True),
    Column("run_no", ForeignKey("runs.no"), nullable=False),
    Column("pinned", Double, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("name", Text, primary_key=True),
    Column("digest", Text, nullable=False, unique=True),
    Column("scope", Text, nullable=False),
    Column("created", Double, nullable=False),
)
