#!/usr/bin/env bash
# Runs one training run on a TPU slice of a GKE cluster, as a JobSet: one pod a host, restarted after preemptions.
#
#   bash launch/gke/run.sh --name NAME --accelerator A --topology T --image IMAGE [--chips-per-node N] [--spot]
#                          [--max-restarts N] [--secrets A,B] [--namespace NS] [--queue Q] [--service-account S]
#                          [--dry-run] -- STAGE ARGUMENTS
#
#   --accelerator A      v5e, v5p, v6e or tpu7x
#   --topology T         sides of the slice in chips: 4x4 (v5e, v6e), 4x8x8 (v5p, tpu7x)
#   --image IMAGE        built by launch/gke/image.sh
#   --chips-per-node N   chips of one node of the node pool (default 4, or all of a smaller slice; 8 for a 2x4 pool
#                        of 8-chip machines)
#   --spot               run on spot nodes
#   --max-restarts N     how often the whole run may be started again (default 10); each start resumes from the
#                        last checkpoint. Exit code 2 (bad input) is not started again.
#   --secrets A,B        environment variables of this shell that the run needs, such as search API keys. They become
#                        the Kubernetes Secret NAME-env, by way of a file of mode 600; --dry-run shows their names only.
#   --namespace NS       default: default
#   --queue Q            a Kueue LocalQueue
#   --service-account S  the Kubernetes service account that may write the bucket (Workload Identity)
#   --dry-run            prints the commands, manifest included, and runs none
#   STAGE ARGUMENTS      sft, rm, grpo or evaluate, then --config FILE.py[:VARIANT] --workdir gs://BUCKET/FOLDER
#                        [--config.KEY=VALUE ...]
#
# The hosts of the slice must form one run: distributed.coordinator=auto and distributed.processes are set.
# kubectl must point at a cluster with the JobSet controller and a node pool of that accelerator and topology; the
# cluster is not made here.
#
# Costs          chips x hours x your price of one chip-hour while the node pool has its nodes, whether the run is
#                there or not, and what GKE asks for the cluster.
# Leaves behind  the JobSet, also when it has finished, and the Secret, until launch/gke/delete.sh; the node pool and
#                the cluster until you delete them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../pod/command_line.sh"

parse_arguments "name namespace accelerator topology chips-per-node image max-restarts secrets queue service-account --" \
  "spot" "$@"
require name accelerator topology image
gke_slice
check_secrets
check_training
require_bucket "a pod's disk goes with the pod"
form_of_hosts "$hosts"

yaml_string() {  # one YAML string; Kubernetes reads $(NAME) in arguments as a variable, so $ is doubled before (
  local text="${1//\\/\\\\}"
  text="${text//\"/\\\"}"
  printf '"%s"' "${text//\$(/\$\$(}"
}

manifest() {
  local word
  cat <<YAML
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: $name
  namespace: $namespace
${queue:+  labels:
    kueue.x-k8s.io/queue-name: $queue
}  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
spec:
  failurePolicy:
    maxRestarts: ${max_restarts:-10}
    rules:
    - name: bad-input
      action: FailJobSet
      onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
  - name: slice
    replicas: 1
    template:
      spec:
        completionMode: Indexed
        parallelism: $hosts
        completions: $hosts
        backoffLimit: 0
        podFailurePolicy:
          rules:
          - action: FailJob
            onExitCodes:
              containerName: searchjax
              operator: In
              values: [2]
        template:
          spec:
            restartPolicy: Never
${service_account:+            serviceAccountName: $service_account
}            nodeSelector:
              cloud.google.com/gke-tpu-accelerator: $node_label
              cloud.google.com/gke-tpu-topology: $topology
${spot:+              cloud.google.com/gke-spot: \"true\"
}            tolerations:
            - key: google.com/tpu
              operator: Exists
              effect: NoSchedule
${spot:+            - key: cloud.google.com/gke-spot
              operator: Exists
              effect: NoSchedule
}            containers:
            - name: searchjax
              image: $image
              workingDir: /searchjax
              command: [/searchjax/.venv/bin/python, -m, $module]
              args:
YAML
  for word in "${train[@]}"; do echo "              - $(yaml_string "$word")"; done
  cat <<YAML
${secrets:+              envFrom:
              - secretRef:
                  name: $name-env
}              resources:
                limits:
                  google.com/tpu: $chips_per_node
YAML
}

say "$hosts hosts of $chips_per_node chips"
say_cost "the node pool is deleted or scaled to zero"
if [ -n "$dry_run" ]; then
  write_secrets
  if [ -n "$secrets" ]; then
    echo "kubectl create secret generic $name-env --namespace=$namespace --from-env-file=$(quoted "$staging/env")" \
      "--dry-run=client --output=yaml | kubectl apply --server-side -f -"
  fi
  echo "kubectl create -f - <<'YAML'"
  manifest
  echo YAML
  exit 0
fi
there="$(kubectl get jobset "$name" --namespace="$namespace" --ignore-not-found --output=name)"
[ -z "$there" ] || fail "$there is there already, running or finished; bash launch/gke/delete.sh --name $name ends it"
if [ -n "$secrets" ]; then
  mkdir -p "$staging"
  write_secrets
  kubectl create secret generic "$name-env" --namespace="$namespace" --from-env-file="$staging/env" \
    --dry-run=client --output=yaml | kubectl apply --server-side -f -
fi
manifest | kubectl create -f -
echo "bash launch/gke/logs.sh --name $name --namespace $namespace --follow shows its output"
