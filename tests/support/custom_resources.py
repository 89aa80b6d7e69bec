"""Strict schemas of the custom resources that the chart renders.

The operators publish theirs as resources of a cluster, and the packages that collect them hold
compiled JavaScript that lets unknown fields pass. So here is the part that the chart uses, field by
field; anything else is a mistake until it is added. Embedded Kubernetes types are Kubernetes' own.
"""

from __future__ import annotations

from typing import Any

STRING, INTEGER, BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
#: KEDA and PostgreSQL take numbers as texts only.
TEXTS = {"type": "object", "additionalProperties": STRING}
COUNT = {"type": "integer", "minimum": 0}
QUANTITY = {"type": "string", "pattern": r"^\d+(\.\d+)?(m|[kMGTP]i?)?$"}
DURATION = {"type": "string", "pattern": r"^(\d+(ms|[smhdwy]))+$"}
#: Where the types of Kubernetes are.
DEFINITIONS = "https://kubernetes.io/api/_definitions.json"


def kubernetes(name: str) -> dict[str, Any]:
    """A type of Kubernetes."""
    return {"$ref": f"{DEFINITIONS}#/$defs/{name}"}


def record(**fields: Any) -> dict[str, Any]:
    """An object of exactly these fields; those that end in ``_`` may be missing."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {name.rstrip("_"): schema for name, schema in fields.items()},
        "required": [name for name in fields if not name.endswith("_")],
    }


def array(item: Any) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1}


METADATA = kubernetes("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")
LABELS = kubernetes("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector")
RESOURCES = kubernetes("io.k8s.api.core.v1.ResourceRequirements")
BEHAVIOUR = kubernetes("io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerBehavior")
LABEL = {"type": "string", "pattern": r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"}

SPECS: dict[tuple[str, str], dict[str, Any]] = {
    ("keda.sh/v1alpha1", "TriggerAuthentication"): record(
        secretTargetRef=array(record(parameter=STRING, name=LABEL, key=STRING))
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): record(
        scaleTargetRef=record(name=LABEL, kind_=STRING, apiVersion_=STRING),
        pollingInterval_=COUNT,
        cooldownPeriod_=COUNT,
        minReplicaCount_=COUNT,
        maxReplicaCount_=COUNT,
        advanced_=record(horizontalPodAutoscalerConfig_=record(name_=LABEL, behavior_=BEHAVIOUR)),
        triggers=array(
            record(
                type={"enum": ["metrics-api"]},
                name_=STRING,
                metricType_={"enum": ["AverageValue", "Value", "Utilization"]},
                authenticationRef_=record(name=LABEL),
                # What the scaler metrics-api reads.
                metadata=record(
                    url={"type": "string", "pattern": "^https?://"},
                    valueLocation=STRING,
                    targetValue={"type": "string", "pattern": r"^\d+(\.\d+)?$"},
                    activationTargetValue_=STRING,
                    authMode_={"enum": ["apiKey", "basic", "tls", "bearer"]},
                ),
            )
        ),
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): record(
        selector=LABELS,
        endpoints=array(
            record(
                port=STRING,
                path=STRING,
                interval_=DURATION,
                scrapeTimeout_=DURATION,
                honorLabels_=BOOLEAN,
                relabelings_=array(record(targetLabel=STRING, replacement=STRING)),
            )
        ),
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): record(
        groups=array(
            record(
                name=STRING,
                rules=array(
                    record(
                        alert=STRING, expr=STRING, for_=DURATION, labels_=TEXTS, annotations_=TEXTS
                    )
                ),
            )
        )
    ),
    ("postgresql.cnpg.io/v1", "Cluster"): record(
        instances={"type": "integer", "minimum": 1},
        imageName_=STRING,
        bootstrap=record(initdb=record(database=STRING, owner=STRING)),
        managed_=record(
            roles=array(
                record(
                    name=STRING,
                    ensure={"enum": ["present", "absent"]},
                    login={"type": "boolean"},
                    bypassrls_={"type": "boolean"},
                    inRoles_=array(STRING),
                )
            )
        ),
        storage=record(size=QUANTITY, storageClass_=STRING),
        resources_=RESOURCES,
        postgresql_=record(
            parameters_=TEXTS,
            synchronous_=record(
                method={"enum": ["any", "first"]},
                number={"type": "integer", "minimum": 1},
                dataDurability_={"enum": ["required", "preferred"]},
            ),
        ),
    ),
    ("rabbitmq.com/v1beta1", "RabbitmqCluster"): record(
        replicas=COUNT,
        image_=STRING,
        persistence=record(storage=QUANTITY, storageClassName_=STRING),
        resources_=RESOURCES,
        affinity_=kubernetes("io.k8s.api.core.v1.Affinity"),
        rabbitmq_=record(additionalConfig_=STRING),
    ),
}
SCHEMAS = {
    kind: record(
        apiVersion={"const": kind[0]}, kind={"const": kind[1]}, metadata=METADATA, spec=spec
    )
    for kind, spec in SPECS.items()
}
