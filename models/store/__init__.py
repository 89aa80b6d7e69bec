"""Access to PostgreSQL: sessions, group commit, prepared statements, array parameters, errors."""
