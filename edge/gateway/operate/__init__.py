"""Operating the gateway: settings, tokens, certificates, logs, traces, metrics."""
