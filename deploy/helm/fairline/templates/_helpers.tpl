{{/* Renders a template once for each cell, with that cell's values; without cells, once. */}}
{{- define "fairline.cells" }}
{{- $root := index . 0 }}
{{- $template := index . 1 }}
{{- range $cell, $own := $root.Values.cells | default (dict "" dict) }}
{{- if ($own).cells }}{{ fail "cells: a cell has no cells of its own" }}{{ end }}
{{- $values := mustMergeOverwrite (deepCopy (omit $root.Values "cells")) (deepCopy ($own | default dict)) }}
{{- include $template (dict "Values" $values "Release" $root.Release "Chart" $root.Chart "Cell" $cell) }}
{{- end }}
{{- end }}

{{/* A text of at most so many characters: instead of its end, what tells it from other texts. */}}
{{- define "fairline.shortened" -}}
{{- $text := index . 0 }}
{{- $most := index . 1 }}
{{- if le (len $text) $most }}{{ $text }}
{{- else }}{{ $text | trunc (int (sub $most 9)) | trimSuffix "-" }}-{{ $text | sha256sum | trunc 8 }}
{{- end }}
{{- end }}

{{/* Of the release and the cell: what all names begin with. Short enough for CloudNativePG, which
     takes names of 50 characters, and RabbitMQ's operator, which takes 45, as it adds to them. */}}
{{- define "fairline.name" -}}
{{- include "fairline.shortened" (list (empty .Cell | ternary .Release.Name (printf "%s-%s" .Release.Name .Cell)) 30) }}
{{- end }}

{{/* Name of a part: 54 characters, as KEDA puts keda-hpa- before it, in a label of 63. */}}
{{- define "fairline.partName" -}}
{{- $name := include "fairline.name" .cell }}
{{- include "fairline.shortened" (list (empty .part | ternary $name (printf "%s-%s" $name (toString .part))) 54) }}
{{- end }}

{{/* Labels by which pods are selected: of a part, or of all of them. */}}
{{- define "fairline.selector" -}}
app.kubernetes.io/name: fairline
app.kubernetes.io/instance: {{ include "fairline.name" .cell }}
{{- with .part }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* Name and labels of a resource. */}}
{{- define "fairline.metadata" -}}
name: {{ include "fairline.partName" . }}
namespace: {{ .cell.Release.Namespace }}
labels:
  {{- include "fairline.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .cell.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .cell.Release.Service }}
  helm.sh/chart: {{ .cell.Chart.Name }}-{{ .cell.Chart.Version }}
{{- end }}

{{/* A queue as a part of names: worker-medium-reserved-acme. */}}
{{- define "fairline.workerPart" -}}
{{- include "fairline.shortened" (list (printf "worker-%s" . | replace "." "-" | replace "_" "-") 63) }}
{{- end }}

{{- define "fairline.secretName" -}}
{{ .Values.secrets.existing | default (include "fairline.name" .) }}
{{- end }}

{{- define "fairline.postgresql" -}}
{{ include "fairline.name" . }}-postgresql
{{- end }}

{{- define "fairline.rabbitmq" -}}
{{ include "fairline.name" . }}-rabbitmq
{{- end }}

{{/* An entry of `env` from a Secret. */}}
{{- define "fairline.secretEnv" }}
- name: {{ .name }}
  valueFrom:
    secretKeyRef: {name: {{ .secret }}, key: {{ .key | default .name }}{{ if .optional }}, optional: true{{ end }}}
{{- end }}

{{/* The environment of a container: secrets, what follows from other values, settings. */}}
{{- define "fairline.env" }}
{{- $cell := .cell }}
{{- $values := .cell.Values }}
{{- $secret := .secret | default (include "fairline.secretName" .cell) }}
{{- $env := deepCopy $values.settings }}
{{- if $values.postgresql.enabled }}
{{- include "fairline.secretEnv" (dict "name" "POSTGRES_PASSWORD" "key" "password" "secret" (printf "%s-app" (include "fairline.postgresql" .cell))) }}
{{- $_ := set $env "FAIRLINE_DATABASE_URL" (printf "postgresql+psycopg2://fairline:$(POSTGRES_PASSWORD)@%s-rw:5432/fairline" (include "fairline.postgresql" .cell)) }}
{{- if and (eq .part "api") $values.postgresql.readFromStandby }}
{{- $_ := set $env "FAIRLINE_READ_DATABASE_URL" (get $env "FAIRLINE_DATABASE_URL" | replace "-rw:5432" "-ro:5432") }}
{{- end }}
{{- else }}
{{- include "fairline.secretEnv" (dict "name" "FAIRLINE_DATABASE_URL" "secret" $secret) }}
{{- end }}
{{- /* The migration needs no broker, and runs before an operator has made one. */}}
{{- if eq .part "migrate" }}
{{- else if $values.rabbitmq.enabled }}
{{- $user := printf "%s-default-user" (include "fairline.rabbitmq" .cell) }}
{{- include "fairline.secretEnv" (dict "name" "RABBITMQ_USERNAME" "key" "username" "secret" $user) }}
{{- include "fairline.secretEnv" (dict "name" "RABBITMQ_PASSWORD" "key" "password" "secret" $user) }}
{{- $broker := printf "$(RABBITMQ_USERNAME):$(RABBITMQ_PASSWORD)@%s" (include "fairline.rabbitmq" .cell) }}
{{- /* By name, so that a client whose node is lost can choose another. */}}
{{- $nodes := list }}
{{- range $number := until (int $values.rabbitmq.replicas) }}
{{- $nodes = append $nodes (printf "%[1]s-server-%[2]d.%[1]s-nodes:5672" (include "fairline.rabbitmq" $cell) $number) }}
{{- end }}
{{- $_ := set $env "FAIRLINE_BROKER_URL" (printf "amqp://$(RABBITMQ_USERNAME):$(RABBITMQ_PASSWORD)@%s//" (join "," $nodes)) }}
{{- if eq .part "flower" }}
{{- $_ := set $env "FLOWER_BROKER_API" (printf "http://%s:15672/api/" $broker) }}
{{- end }}
{{- else }}
{{- include "fairline.secretEnv" (dict "name" "FAIRLINE_BROKER_URL" "secret" $secret) }}
{{- end }}
{{- range .secrets }}
{{- include "fairline.secretEnv" (dict "name" . "secret" $secret) }}
{{- end }}
{{- $optional := .optionalSecrets | default list }}
{{- if .blobs }}{{ $optional = concat (list "FAIRLINE_ENCRYPTION_KEYS" "AWS_ACCESS_KEY_ID" "AWS_SECRET_ACCESS_KEY" "AWS_SESSION_TOKEN") $optional }}{{ end }}
{{- if ne .part "migrate" }}{{ $optional = append $optional "OTEL_EXPORTER_OTLP_HEADERS" }}{{ end }}
{{- range $optional }}
{{- include "fairline.secretEnv" (dict "name" . "secret" $secret "optional" true) }}
{{- end }}
{{- $pools := dict }}
{{- $least := dict }}
{{- $most := dict }}
{{- range $name, $pool := $values.pools }}
{{- if ne $pool.enabled false }}
{{- $_ := set $pools $name (mustMerge (dict "slots" $pool.slots "concurrency" $pool.concurrency) ($pool.settings | default dict)) }}
{{- $_ := set $least $name $pool.replicas.min }}
{{- $_ := set $most $name $pool.replicas.max }}
{{- end }}
{{- end }}
{{- $_ := set $env "FAIRLINE_POOLS" $pools }}
{{- $_ := set $env "FAIRLINE_SERVED_POOLS" (keys $pools | sortAlpha | join ",") }}
{{- $_ := set $env "FAIRLINE_SCALE_MIN" $least }}
{{- $_ := set $env "FAIRLINE_SCALE_MAX" $most }}
{{- $_ := set $env "FAIRLINE_BLOB_URL" ($values.blobs.url | default "/var/lib/fairline/blobs") }}
{{- range $name, $value := mustMerge (.env | default dict) $env }}
- name: {{ $name }}
  value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
{{- end }}
{{- end }}

{{/* A pod that runs one command of the image. */}}
{{- define "fairline.pod" }}
{{- $values := .cell.Values }}
{{- $image := mustMerge (deepCopy (.image | default dict)) $values.image }}
{{- $blobs := and .blobs (not $values.blobs.url) }}
metadata:
  labels:
    {{- include "fairline.selector" . | nindent 4 }}
  {{- with $values.secrets.values }}
  annotations:
    checksum/secrets: {{ toJson . | sha256sum }}
  {{- end }}
spec:
  serviceAccountName: {{ $values.serviceAccount }}
  automountServiceAccountToken: false
  # Services of other releases would appear as settings: FAIRLINE_PORT=tcp://…
  enableServiceLinks: false
  # A worker that has to end at once kills itself, which process 1 cannot; and orphans are reaped.
  shareProcessNamespace: true
  terminationGracePeriodSeconds: {{ .grace }}
  {{- with .restart }}
  restartPolicy: {{ . }}
  {{- end }}
  {{- with $values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    # Not every file of a claim with a million blobs at every start.
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "fairline.selector" . | nindent 10 }}
  {{- with .podSpec }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  containers:
    - name: {{ .container }}
      image: "{{ $image.repository }}:{{ $image.tag | default .cell.Chart.AppVersion }}"
      imagePullPolicy: {{ $image.pullPolicy }}
      command: {{ toJson .command }}
      env:
        {{- include "fairline.env" . | trim | nindent 8 }}
      {{- with .port }}
      ports:
        - {name: http, containerPort: {{ . }}}
      {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      {{- with .probes }}
      {{- . | trim | nindent 6 }}
      {{- end }}
      {{- with .preStop }}
      lifecycle:
        preStop: {{ toJson . }}
      {{- end }}
      resources:
        {{- toYaml .resources | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: shm, mountPath: /dev/shm}
        {{- if $blobs }}
        - {name: blobs, mountPath: /var/lib/fairline/blobs}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: 1Gi}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: 64Mi}
    {{- if $blobs }}
    - name: blobs
      persistentVolumeClaim:
        claimName: {{ $values.blobs.existingClaim | default (printf "%s-blobs" (include "fairline.name" .cell)) }}
    {{- end }}
{{- end }}

{{/* A Deployment of such pods, of which one at a time may be evicted. */}}
{{- define "fairline.deployment" }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "fairline.metadata" . | nindent 2 }}
spec:
  {{- if hasKey . "replicas" }}
  replicas: {{ .replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  strategy:
    rollingUpdate: {maxSurge: 25%, maxUnavailable: 0}
  selector:
    matchLabels:
      {{- include "fairline.selector" . | nindent 6 }}
  template:
    {{- include "fairline.pod" . | trim | nindent 4 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "fairline.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: {{ .evictUnhealthy | default "AlwaysAllow" }}
  selector:
    matchLabels:
      {{- include "fairline.selector" . | nindent 6 }}
{{- end }}

{{/* Probes by HTTP: the process responds. What it needs may be away without it being restarted. */}}
{{- define "fairline.httpProbes" }}
startupProbe:
  httpGet: {path: {{ . }}, port: http}
  periodSeconds: 2
  failureThreshold: 90
readinessProbe:
  httpGet: {path: {{ . }}, port: http}
  periodSeconds: 5
  timeoutSeconds: 3
livenessProbe:
  httpGet: {path: {{ . }}, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{/* Probes by presence: a process of this kind reports to the database from this pod. It is restarted
     only if it does not while others do: an outage of the database restarts nothing. */}}
{{- define "fairline.presenceProbes" }}
startupProbe:
  exec:
    command: {{ toJson (concat (list "python" "-m" "models.alive" "--starting") .) }}
  periodSeconds: 5
  timeoutSeconds: 15
  failureThreshold: 60
readinessProbe:
  exec:
    command: {{ toJson (concat (list "python" "-m" "models.alive") .) }}
  periodSeconds: 20
  timeoutSeconds: 15
livenessProbe:
  exec:
    command: {{ toJson (concat (list "python" "-m" "models.alive" "--hung") .) }}
  periodSeconds: 30
  timeoutSeconds: 15
{{- end }}
