"""Validates the output of `kubectl kustomize` and the examples against published schemas: k8s.py BUILT DEPLOY"""

import json
import pathlib
import sys

import jsonschema
import kubernetes_validate
import yaml

VERSIONS = ["1.33", "1.37"]

built, deploy = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
documents = list(yaml.safe_load_all(built.read_text()))
crd = next(document for document in documents if document["kind"] == "CustomResourceDefinition")
schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
counts = {"documents": 0, "versions": VERSIONS, "refused": 0}


def closed(node):
    """Makes unknown fields errors. (The API server drops them with a warning.)"""
    if isinstance(node, dict):
        if "properties" in node and "additionalProperties" not in node:
            node["additionalProperties"] = False
        for value in node.values():
            closed(value)
    return node


# The definition does not list the fields that every object has.
schema["properties"].update({"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}})
validator = jsonschema.Draft4Validator(closed(schema))
for path in sorted((deploy / "examples").glob("*.yaml")):
    documents += list(yaml.safe_load_all(path.read_text()))


def check(document):
    if document["kind"] == "Dataset":
        validator.validate(document)
    elif document["kind"] not in ("JobSet", "TrainJob"):
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)
    else:
        return
    counts["documents"] += 1


for document in documents:
    check(document)

# Canary: a misspelt field in each document must be refused.
for document in documents:
    if document["kind"] in ("Dataset", "Deployment", "DaemonSet", "Job"):
        document["spec"]["tierz"] = {}
        try:
            check(document)
        except (jsonschema.ValidationError, kubernetes_validate.ValidationError):
            counts["refused"] += 1
        else:
            sys.exit(f"{document['kind']}: a misspelt field was not refused")

json.dump(counts, sys.stdout)
