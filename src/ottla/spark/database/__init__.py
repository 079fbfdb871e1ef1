"""`format("ottla-database")`: rows and progress in one transaction of SQLite or PostgreSQL."""
