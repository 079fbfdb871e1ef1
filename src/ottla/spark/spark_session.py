"""Creates a SparkSession: finds Java, sets the Python of its workers, and tunes it for streams on one machine."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.errors import OttlaError
from ottla.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Settings for micro-batches on one machine that differ from Spark's defaults.
LOCAL_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
}

WORKER_START = str(Path(__file__).parent / "worker_start")
"""See `worker_start/sitecustomize.py`."""

# The variables that Spark adds to the environment of a format when a stream of it begins.
WORKER_ENVIRONMENT = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")


def session(
    app_name: str = "ottla", *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> "SparkSession":
    """Starts a session, or returns the running one. `format("ottla")` is available in it, in the calling thread.

    Without `master` Spark decides: the master of spark-submit, SPARK_REMOTE, else this machine with all its cores.

    >>> spark = session("orders", master="local[4]", conf={"spark.driver.memory": "2g"})
    """
    spark = plain_session(app_name, master=master, conf=conf)
    if not is_remote(master):
        register(spark)
    return spark


def is_remote(master: str | None) -> bool:
    """Whether the session is one of Spark Connect."""
    return bool(os.environ.get("SPARK_REMOTE")) or bool(master and master.startswith("sc://"))


def plain_session(app_name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None) -> "SparkSession":
    """A session that has not looked up our formats yet: Spark starts a Python process for that."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise OttlaError("the pipeline needs PySpark 4.2 or newer", "Run pip install 'ottla[spark]'.") from None
    check_version()
    builder = SparkSession.builder.appName(app_name)
    if is_remote(master):
        if master:
            builder = builder.remote(master)
    else:
        prepare_environment()
        submitted = "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ
        if master or not submitted:
            builder = builder.master(master or "local[*]")
        if (master or "local").startswith("local"):
            # Everything stays on this machine, so Spark need not look up its address, nor warn about it.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            for name, value in LOCAL_CONF.items():
                builder = builder.config(name, value)
    for name, value in (conf or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    make_active(spark)
    return spark


def make_active(spark: "SparkSession") -> None:
    """Makes this the active session of the calling thread.

    Spark looks up Python formats for writing only in the active session of the calling thread. A thread that the user
    started has none, and Python's main thread may lose it when its connection to the JVM is reopened. With Spark
    Connect the server takes care of it.
    """
    from pyspark.sql import SparkSession

    if isinstance(spark, SparkSession):
        SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)  # noqa: SLF001 - PySpark has no public way


def preset_environment(spark: "SparkSession") -> None:
    """Sets the environment of our formats' processes: how they start, and the variables that a stream would add.

    All streams of a format share one map, and Spark does not synchronize it: two streams that begin at the same moment
    may both add a name. This corrupts the map's size, and no task with it can be serialized any more. With the names in
    it, streams only overwrite them. With Spark Connect the map is on the server and out of reach.
    """
    from pyspark.sql import SparkSession

    if not isinstance(spark, SparkSession):
        return
    for name in ("ottla", "ottla-database"):
        source = find_format(spark, name)
        if source is not None:
            variables = source.dataSourceCls().envVars()
            paths = [path for path in (variables.get("PYTHONPATH") or "").split(os.pathsep) if path]
            if WORKER_START not in paths:
                variables.put("PYTHONPATH", os.pathsep.join((WORKER_START, *paths)))
            for variable in WORKER_ENVIRONMENT:
                variables.putIfAbsent(variable, "")


def find_format(spark: "SparkSession", name: str) -> Any:
    """The JVM's object of a format; None if Spark does not find the format."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        return spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource(name)  # noqa: SLF001 - PySpark has no public way
    except (PySparkException, Py4JError):
        return None


def register(spark: "SparkSession") -> None:
    """Registers the formats that Spark does not find itself. `session()` calls it.

    Spark looks for the packages `pyspark_ottla` and `pyspark_ottla_database` once, in a Python process. It does not
    find them if ottla comes with the job (`--py-files`), or if that process is killed.
    """
    from pyspark.sql import SparkSession

    from ottla.spark.database.sink import DatabaseDataSource
    from ottla.spark.datasource import OttlaDataSource

    is_connected = not isinstance(spark, SparkSession)
    for source in (OttlaDataSource, DatabaseDataSource):
        if is_connected or find_format(spark, source.name()) is None:
            spark.dataSource.register(source)
    preset_environment(spark)


def prepare_environment() -> None:
    """Sets JAVA_HOME and, unless the user did, PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON."""
    os.environ["JAVA_HOME"] = java_home()
    # Otherwise the workers run the first python3 on the path, which may not have ottla.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def check_version() -> None:
    import pyspark

    major, minor = (int(part) for part in pyspark.__version__.split(".")[:2])
    if (major, minor) < (4, 2):
        raise OttlaError(
            f"the pipeline needs PySpark 4.2 or newer; {pyspark.__version__} is installed",
            "Run pip install --upgrade 'pyspark>=4.2'.",
        )
