"""The prediction log: requests, their answers, and the labels that come later (docs/prediction-log.md).

    answered request --PredictionLog: sampled?--> record --RecordPipe--> writer process --> Parquet by hour

The server only copies a record into a pipe. A separate process parses the bodies again and writes the files.
"""
