"""What whoever runs the gateway sees and sets: settings, tokens, certificates, logs, traces, figures."""
