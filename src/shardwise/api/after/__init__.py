"""What is done with a run or a plan: reports, merged weights, answers, other tools' files."""
