"""Which names of database tables are accepted. They become part of SQL statements, so nothing else may be. Pure."""

import re

TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
TABLE_NAME_HINT = "Use letters, digits and _, or schema.table."


def table_name_problem(name: str) -> str:
    """What is wrong with a table name, or an empty string.

    >>> table_name_problem("shop.orders"), table_name_problem("orders; drop table x")
    ('', "'orders; drop table x' is not a valid table name")
    """
    return "" if TABLE_NAME.fullmatch(name) else f"{name!r} is not a valid table name"
