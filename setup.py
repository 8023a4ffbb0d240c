"""Packaging: what everybody needs, and as extras what only some users need."""

from setuptools import find_packages, setup

CLUSTER = ["pyspark>=4.0,<5"]  # a local cluster fetches Kafka's jars through the Ivy that PySpark ships
SCHEMA_REGISTRY = ["confluent-kafka[avro,json,protobuf]>=2.13.0,<3"]
DOCKER = ["docker>=7.1,<8"]
POSTGRES = ["psycopg[binary]>=3.2,<4"]  # the sink of a consistent region
TRACES = ["opentelemetry-exporter-otlp-proto-http>=1.27,<2", "opentelemetry-sdk>=1.27,<2"]
DOCS = ["mkdocs-material", "mkdocstrings[python]"]
# From PySpark 4.2 on a Python source may bound its batches. The lower bounds of pandas and pyarrow are PySpark's; those
# of extras are not tried by themselves.
SPARK = ["pandas>=2.2,<3", "psutil>=5.9,<8", "pyarrow>=18,<27", "pyspark>=4.2,<5"]
EXPERIMENTS = [*SPARK, "matplotlib>=3.8,<4", "scipy>=1.15,<2"]
DEV = [
    "confluent-kafka[avro]",  # deserializers of a schema registry
    "aiokafka",  # as a client of the gateway
    "coverage",  # with the next two: `make mutation-score`
    "libcst",
    "mutmut",
    "hypothesis",
    "kio==0.6.5",  # what the codec of Kafka's protocol is compared with
    "kafka-python",  # what the benchmarks compare with
    "kubernetes-validate",  # the schemas that manifests are checked with; it brings PyYAML
    "mypy",
    "pandas-stubs<3",
    "pyarrow-stubs",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "ruff",
    "types-gevent",
    "types-psutil",
    "types-setuptools",
]

setup(
    name="zkrebalancer",
    version="0.1.0",
    description="A ZooKeeper-backed central rebalancer for Kafka consumer groups",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["zkrebalancer*", "consumer_agent*"]),
    py_modules=["pyspark_consumer_group"],
    package_dir={"": "."},  # so that an editable install puts this folder on the path, where Spark looks for the module
    package_data={
        "consumer_agent": ["py.typed"],
        "zkrebalancer": [
            "py.typed",
            "coordinator/pages/static/*",
            "experiments/java/*.java",
            "experiments/java/*.properties",
            "kafka_protocol/definitions/*",
            "localcluster/*.c",
            "localcluster/*.sha256",
            "localcluster/*.properties",
            "pipeline/*.properties",
        ],
    },
    # The lowest and the newest that these bounds allow are tried by tests/compat.
    install_requires=[
        "click>=8.2.0,<9",
        "confluent-kafka>=2.13.0,<3",  # the first whose messages the tests can make
        "gevent>=25.4.2,<27",  # before 25.4 its SimpleQueue stops the whole loop
        "google-re2>=1.0,<2",
        "kazoo>=2.11.0,<2.12",  # 2.10 gives handlers other arguments; any release may change the log text that we parse
        "msgpack>=1.0.5,<2",  # the first for Python 3.11
        "numpy>=1.23.2,<3",  # the first for Python 3.11
        "prometheus-client>=0.15.0,<1",
        "pure-sasl>=0.5.1,<1",  # kazoo's SASL
        "rich>=13.0.0,<16",  # 12.0 knows no progress without a total
    ],
    extras_require={
        "cluster": CLUSTER,
        "spark": SPARK,
        "experiments": EXPERIMENTS,
        "docker": DOCKER,
        "schema-registry": SCHEMA_REGISTRY,
        "traces": TRACES,
        "postgres": POSTGRES,
        "docs": DOCS,
        "dev": EXPERIMENTS + DOCKER + TRACES + POSTGRES + DEV,
    },
    entry_points={
        "console_scripts": [
            "zkrebalancer = zkrebalancer.cli.main:main",
            "consumer-agent = consumer_agent.sidecar.cli:main",
        ]
    },
)
