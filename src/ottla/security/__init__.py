"""Security that broker and client share: principals, ACLs, TLS, SASL mechanisms, quotas."""
