"""What is shown of runs in a browser, to Prometheus and in report.html; run folders are only ever read here."""
