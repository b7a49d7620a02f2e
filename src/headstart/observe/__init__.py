"""What a server shows of itself and reads of others: metrics, log lines, traces."""
