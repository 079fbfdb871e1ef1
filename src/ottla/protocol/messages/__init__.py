"""Every message of the protocol as a table, one API per file. Imported one by one, when first needed. Pure."""
