"""A SparkSession with everything in place: Java, the Python of its workers, what a stream on one machine wants."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.errors import OttlaError
from ottla.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What a stream of micro-batches on one machine wants and Spark does not default to.
LOCAL_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
}

# What Spark adds to the environment of a format when a stream of it begins.
WORKER_ENVIRONMENT = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")


def session(
    app_name: str = "ottla", *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> "SparkSession":
    """Starts a session, or gives the one that runs. `format("ottla")` is known in it, in the thread that calls.

    Without `master` Spark decides: spark-submit's answer, SPARK_REMOTE, else this machine with all its cores.

    >>> spark = session("orders", master="local[4]", conf={"spark.driver.memory": "2g"})
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise OttlaError("the pipeline needs PySpark 4.2 or newer", "pip install 'ottla[spark]'") from None
    check_version()
    remote = bool(os.environ.get("SPARK_REMOTE")) or bool(master and master.startswith("sc://"))
    builder = SparkSession.builder.appName(app_name)
    if remote:
        if master:
            builder = builder.remote(master)
    else:
        prepare_environment()
        submitted = "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ
        if master or not submitted:
            builder = builder.master(master or "local[*]")
        if (master or "local").startswith("local"):
            # Nothing leaves this machine, so Spark need not look for its address, nor warn about what it finds.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            for name, value in LOCAL_CONF.items():
                builder = builder.config(name, value)
    for name, value in (conf or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    make_active(spark)
    name_environment(spark)
    return spark


def make_active(spark: "SparkSession") -> None:
    """Makes this the session of the thread that calls.

    Spark looks up where to write in the calling thread's own session, and finds formats in Python in no other. A thread
    of the user's own has none; and Python's main thread may lose it, when its connection to Java is made anew. With
    Spark Connect the server sees to it.
    """
    from pyspark.sql import SparkSession

    if isinstance(spark, SparkSession):
        SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def name_environment(spark: "SparkSession") -> None:
    """Gives our formats the variables that a stream would add, so that it only has to overwrite them.

    The map belongs to all streams of a format, and Spark does not guard it: two streams that begin at the same moment
    may both add a name, which leaves the map with a wrong size, and no task with it can be serialized ever after. With
    Spark Connect the map is the server's, and out of reach.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    if not isinstance(spark, SparkSession):
        return
    for name in ("ottla", "ottla-database"):
        try:
            source = spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource(name)
            variables = source.dataSourceCls().envVars()
        except Py4JError:  # not on the path of the workers: register() will do, or the first use says what is wrong
            continue
        for variable in WORKER_ENVIRONMENT:
            variables.putIfAbsent(variable, "")


def register(spark: "SparkSession") -> None:
    """Makes the formats known where Spark does not find them by itself.

    Where ottla is installed, it does: `pyspark_ottla` and `pyspark_ottla_database` are on the path of its workers.
    This call is for a cluster whose workers get ottla with the job (`--py-files`).
    """
    from ottla.spark.database.sink import DatabaseDataSource
    from ottla.spark.datasource import OttlaDataSource

    spark.dataSource.register(OttlaDataSource)
    spark.dataSource.register(DatabaseDataSource)
    name_environment(spark)


def prepare_environment() -> None:
    """Sets what Spark reads from the environment, where the user has not: JAVA_HOME, PYSPARK_PYTHON."""
    os.environ["JAVA_HOME"] = java_home()
    # Else the workers run whatever python3 is on the path, which need not have ottla.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def check_version() -> None:
    import pyspark

    major, minor = (int(part) for part in pyspark.__version__.split(".")[:2])
    if (major, minor) < (4, 2):
        raise OttlaError(
            f"the pipeline needs PySpark 4.2 or newer, and this is {pyspark.__version__}",
            "pip install --upgrade 'pyspark>=4.2'",
        )
