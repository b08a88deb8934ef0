"""What a job needs: counted, planned, measured and rehearsed, without training."""
