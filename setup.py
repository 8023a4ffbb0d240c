"""Packaging: what everybody needs, and as extras what only some users need."""

from setuptools import find_packages, setup

CLUSTER = ["pyspark>=4.0,<5"]  # a local cluster fetches Kafka's jars through the Ivy that PySpark ships
DOCS = ["mkdocs-material", "mkdocstrings[python]"]
SPARK = ["pandas<3", "psutil", "pyarrow", "pyspark>=4.2,<5"]  # from 4.2 on a Python source may bound its batches
EXPERIMENTS = [*SPARK, "matplotlib"]
DEV = [
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
            "experiments/java/*.java",
            "experiments/java/*.properties",
            "kafka_protocol/definitions/*",
            "localcluster/*.sha256",
            "localcluster/*.properties",
            "pipeline/*.properties",
        ],
    },
    install_requires=[
        "click",
        "confluent-kafka",
        "gevent",
        "google-re2",
        "kazoo",
        "msgpack",
        "numpy",
        "prometheus-client",
        "pure-sasl",  # kazoo's SASL
        "rich",
    ],
    extras_require={
        "cluster": CLUSTER,
        "spark": SPARK,
        "experiments": EXPERIMENTS,
        "docker": ["docker"],
        "docs": DOCS,
        "dev": EXPERIMENTS + DEV,
    },
    entry_points={
        "console_scripts": [
            "zkrebalancer = zkrebalancer.cli.main:main",
            "consumer-agent = consumer_agent.sidecar.cli:main",
        ]
    },
)
