"""What every client uses: network, polling, cluster view, lookups, settings and argument checks."""
