"""A boto3 client set up as a careful user would: path style, no signatures, no retries hidden in the figures."""

import boto3
from botocore import UNSIGNED
from botocore.config import Config

from protocol import Task

VERSION = boto3.__version__


def client(task: Task):
    config = Config(signature_version=UNSIGNED, s3={"addressing_style": "path"}, tcp_keepalive=True)
    return boto3.client("s3", endpoint_url=task.endpoint, region_name="us-east-1", config=config)


def get(s3, task: Task, key: str) -> bytes:
    return s3.get_object(Bucket=task.bucket, Key=task.prefix + key)["Body"].read()
