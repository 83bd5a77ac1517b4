"""Command lines with secrets, and ordinary ones. A secret is a placeholder: no line looks like a real secret.

`fill` replaces them by a seed: <word> by a password that a person chose; <base62>, <base64>, <base64url> and
<base36> by 40 random characters; <jwt> by a token of three parts.
"""

from __future__ import annotations

import random
import re
import string
import uuid
from base64 import urlsafe_b64encode

BASE64 = string.ascii_letters + string.digits + "+/"
BASE64URL = string.ascii_letters + string.digits + "-_"
PLACEHOLDER = re.compile(r"<(word|base62|base64|base64url|base36|hex32|hex40|hex64|uuid|digits|jwt)>")

# Secrets with a name, as options of servers and tools.
NAMED = """
serve --password=<word>
serve --password <word>
serve -password <word>
serve --db-password=<word>
serve --api-key <word>
serve --api_key=<word>
serve --apiKey=<word>
serve --hf-token <word>
serve --auth-token=<word>
serve --secret <word>
serve --aws-secret-access-key=<word>
serve --private-key <word>
serve --passphrase '<word> with words <word>'
serve --token --<word>
serve password: <word>
serve --credentials=<word>
serve --client-secret <word>
serve --webhook-secret=<word>
serve --encryption-key <hex64>
serve --master-key <hex32>
serve --signing-key=<base62>
serve --session-cookie <base62>
serve --license-key <word>
serve --access-code <word>
serve --bearer <word>
serve --admin-pw <word>
serve --rootpw=<word>
serve --dbpass <word>
serve --key <hex64>
serve --sig=<hex32>
serve --salt <base62>
vllm serve meta-llama/Llama-3.1-8B-Instruct --port 8000 --api-key <word>
llama-server -m /models/q.gguf --api-key <word>
python -m sglang.launch_server --model-path Qwen/Qwen3-8B --api-key <word> --admin-api-key <word>
text-generation-launcher --model-id x --otlp-token <word>
litellm --model gpt-4o --master_key <word>
jupyter lab --ip=0.0.0.0 --NotebookApp.token=<word>
jupyter lab --ServerApp.password='<word>'
jupyter server --IdentityProvider.token <word>
ray start --head --redis-password=<word>
tailscale up --authkey <word>
cloudflared tunnel run --token <jwt>
java -Djavax.net.ssl.keyStorePassword=<word> -jar app.jar
keytool -storepass <word> -list
keytool -keypass <word> -list
java -jar jenkins-agent.jar -secret <hex64> -name gpu1
train.py trainer.hub_token=<word> lr=0.1
train.py +wandb.api_key=<word> seed=7
env PGPASSWORD=<word> psql
env MYSQL_PWD=<word> mysql
env SSHPASS=<word> sshpass -e ssh host
env AWS_SECRET_ACCESS_KEY=<base64> aws s3 ls
env OPENAI_API_KEY=<word> python chat.py
env HF_TOKEN=<word> huggingface-cli download x
env RESTIC_PASSWORD=<word> restic backup /data
env WANDB_API_KEY=<hex40> python train.py
env RCLONE_CONFIG_PASS=<word> rclone sync a b
docker run -e HF_TOKEN=<word> image
docker run -eHF_TOKEN=<word> image
docker run --env=POSTGRES_PASSWORD=<word> postgres
podman run --env NGC_API_KEY=<word> nim
helm install x --set auth.password=<word>
helm install x --set-string secrets.hfToken=<word>
kubectl --token=<word> get pods
kubectl create secret generic x --from-literal=password=<word>
ansible-playbook site.yml -e ansible_password=<word>
ansible-playbook site.yml -e 'ansible_become_pass=<word>'
wget --http-password=<word> https://x.example/a
wget --header='Authorization: Basic <base64>' https://x.example
mount -t cifs //nas/data /mnt -o username=ada,password=<word>
openssl enc -aes-256-cbc -pass pass:<word> -in a -out b
openssl pkcs12 -passin pass:<word> -in a
gpg --batch --passphrase <word> -d x
sqlcmd -S db -U sa -P <word>
aws configure set aws_secret_access_key <base64>
nmcli device wifi connect lab password <word>
""".strip().splitlines()

# Secrets in the arguments of one program, without a name.
PROGRAMS = """
/usr/bin/mysql -p<word> db
mysql -uroot -p<word> db
sudo mysqldump -p<word> db
docker exec db mysql -uroot -p<word>
bash -c 'mysql --password=<word> db'
bash -c 'mysql --password <word> db'
bash -c 'mysql -p<word> db'
sh -c 'exec mysqladmin -u root -p<word> ping'
bash -c 'mysql --password="<word> <word>" db'
sshpass -p <word> ssh host
sshpass -p<word> rsync a b
redis-cli -a <word> ping
redis-server --requirepass <word>
curl -u ada:<word> https://x.example
curl --user ada:<word> https://x.example
curl -sSLu ada:<word> https://x.example
curl -H 'Authorization: Bearer <word>' https://x.example
curl -H 'X-Api-Key: <word>' https://x.example
curl --header 'Cookie: session=<word>' https://x.example
curl -b session=<base62> https://x.example
curl -H 'PRIVATE-TOKEN: <word>' https://x.example
curl -d 'grant_type=password&client_secret=<word>' https://x.example
http -a ada:<word> https://x.example
smbclient -U ada%<word> //nas/x
ldapsearch -D cn=admin -w <word> -b dc=x
mosquitto_pub -u ada -P <word> -t x -m y
docker login -u ada -p <word> registry.example
helm registry login -u ada -p <word> registry.example
skopeo copy --src-creds ada:<word> docker://a docker://b
unzip -P <word> data.zip
7z x -p<word> data.7z
mongosh --host db -u ada -p <word>
ipmitool -I lanplus -H bmc -U admin -P <word> sol activate
snmpwalk -v3 -u ada -A <word> -X <word> host
xfreerdp /v:host /u:ada /p:<word>
wandb login <hex40>
vault login <word>
ngrok config add-authtoken <word>
htpasswd -b /etc/users ada <word>
wpa_passphrase lab <word>
mc alias set lab https://s3.example ada <word>
serve '{"user": "ada", "password": "<word>"}'
serve '{"user":"ada","password":"<word>"}'
serve '{"headers": {"Authorization": "Bearer <word>"}}'
serve 'Server=db;User Id=sa;Password=<word>;Encrypt=true'
""".strip().splitlines()

# URLs and connection strings.
URLS = """
psql postgres://ada:<word>@db/train
psql postgres://ada:pa/<word>@db/train
redis-cli -u redis://:<word>@cache:1
celery -b amqp://ada:<word>@mq:5672//
optuna --storage mysql+pymysql://ada:<word>@db/optuna
migrate ada:<word>@tcp(db:3306)/train
git clone https://<word>@example.org/x
git clone https://oauth2:<word>@gitlab.example/x.git
pip install --index-url https://ada:<word>@packages.example/python x
pull http://a.example,http://ada:<word>@b.example
curl 'https://x.example/y?token=<word>&b=1'
curl 'https://x.example/y?b=1&api_key=<word>#top'
curl 'https://x.example/y?key=<hex32>'
curl 'https://x.example/y?x=<base62>'
curl 'https://b.s3.amazonaws.com/k?X-Amz-Credential=<base62>&X-Amz-Signature=<hex64>'
curl 'https://storage.googleapis.com/b/k?X-Goog-Signature=<hex64>'
azcopy copy 'https://a.blob.core.windows.net/c?sv=2024&sig=<base64>' /data
curl https://hooks.slack.com/services/T0<digits>/B0<digits>/<base62>
curl https://hooks.slack.com/workflows/T0/A0/<digits>/<base62>
curl https://discord.com/api/webhooks/<digits>/<base64url>
curl https://discordapp.com/api/v10/webhooks/<digits>/<base64url>
curl https://x.webhook.office.com/webhookb2/<uuid>@<uuid>/IncomingWebhook/<hex32>/<uuid>
curl 'https://prod-1.westeurope.logic.azure.com:443/workflows/<hex32>/triggers/manual/paths/invoke?sig=<base64url>'
curl https://api.telegram.org/bot<digits>:<base64url>/sendMessage
curl https://events.pagerduty.com/integration/<hex32>/enqueue
curl -d hi https://ntfy.sh/<word>
curl -d hi ntfy.sh/<word>
curl https://chat.googleapis.com/v1/spaces/A/messages?key=<base62>&token=<base64url>
curl https://maker.ifttt.com/trigger/oom/with/key/<base62>
curl https://hc-ping.com/<uuid>
curl https://hooks.zapier.com/hooks/catch/1/<word>/
curl https://hook.eu1.make.com/<base36>
curl https://mattermost.example/hooks/<base36>
curl https://ha.example/api/webhook/<word>
curl https://n8n.example/webhook/<uuid>
curl https://open.feishu.cn/open-apis/bot/v2/hook/<uuid>
curl https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=<uuid>
curl https://oapi.dingtalk.com/robot/send?access_token=<hex64>
curl https://uptime.betterstack.com/api/v1/heartbeat/<base62>
apprise -b hi slack://<base62>/<base62>/<base62>
apprise -b hi discord://<digits>/<base64url>
apprise -b hi tgram://<digits>:<base64url>/1
apprise -b hi mailto://ada:<word>@example.org
apprise -b hi ntfy://<word>
apprise -b hi pover://<base36>@<base36>
""".strip().splitlines()

# Known kinds of keys and random text: no name, no program.
KEYS = """
upload hf_<base62>
upload ghp_<base62>
upload gho_<base62>
upload github_pat_<base62>
upload glpat-<base64url>
upload sk-<base62>
upload sk-proj-<base64url>
upload sk-ant-api03-<base64url>
upload sk-or-v1-<hex64>
upload sk_live_<base62>
upload xoxb-<digits>-<digits>-<base62>
upload xapp-1-<base62>
upload AKIA<digits>ABCD
upload AIza<base64url>
upload ya29.<base64url>
upload GOCSPX-<base64url>
upload nvapi-<base64url>
upload gsk_<base62>
upload r8_<base62>
upload pplx-<base62>
upload xai-<base62>
upload npm_<base62>
upload pypi-AgE<base64url>
upload dckr_pat_<base64url>
upload tskey-auth-<base62>
upload dop_v1_<hex64>
upload shpat_<hex32>
upload SG.<base64url>.<base64url>
upload glsa_<base62>_<digits>
upload hvs.<base64url>
upload lsv2_pt_<hex32>_<digits>
upload tvly-<base62>
upload dapi<hex32>
upload whsec_<base64>
upload tk_<base36>
upload figd_<base64url>
upload key-<hex32>
upload <digits>:<base64url>
upload <jwt>
upload <base62>
upload --to=<base62>
upload --to <base62>
upload --to=<base36>
upload --to=<base64>
upload --to=<base64url>
upload x=1,y=<base62>
upload X-Custom:<base62>
bash -c 'upload <base62> now'
upload '{"to": "<base62>"}'
upload 'AccountName=a;EndpointSuffix=x;To=<base62>'
upload https://x.example/in/<base62>/go
serve --key sk-<base62>
python -c "upload('<base62>')"
""".strip().splitlines()

SECRET_LINES = (*NAMED, *PROGRAMS, *URLS, *KEYS)

# Nothing of these is a secret. They are shown as they are.
ORDINARY_LINES = """
python train.py --max-tokens 4096 --tokenizer gpt2 --max_new_tokens=5
python train.py --global-batch-size=1024 ops_per_second=1000000 sk-learn-pipeline-name
python train.py --lr 3e-4 --batch-size 32 --epochs=10 --seed 1234567890123456
serve --password-file /etc/serve/password --port 8000
serve --ssl-keyfile /etc/ssl/private/key.pem --ssl-certfile=/etc/ssl/cert.pem
serve --private-key /etc/ssl/private/gpu7.pem --port 8000
serve --token-file=/run/secrets/token --api-key-file /run/secrets/key
serve --no-auth --port 8000
serve --enable-auth --host 0.0.0.0
serve --auth none --auth-mode basic
serve --require-auth true --port 8000
serve --eos-token-id 2 --pad-token <pad> --bos_token=<s>
serve --long-prefill-token-threshold 0 --num-speculative-tokens 5
serve --image-token-index 32000 --token-budget=8192
docker run -p 80:80 image@sha256:<hex64>
docker run --user 1000:1000 --gpus all nvcr.io/nvidia/pytorch:25.10-py3
docker run --name vllm -v /data/models:/models:ro vllm/vllm-openai:v0.11.0
docker run --gpus device=GPU-<uuid> --shm-size=16g --ipc=host image:tag
podman run --device nvidia.com/gpu=MIG-<uuid> registry.example:5000/team/app@sha256:<hex64>
containerd-shim-runc-v2 -namespace k8s.io -id <hex64> -address /run/containerd/containerd.sock
conmon --api-version 1 -c <hex64> -u <hex64> -r /usr/bin/crun -b /var/lib/containers/<hex64>/userdata
kubectl logs vllm-llama-7d9f8c6b5d-x2k4q -n inference
kubectl exec -it training-job-worker-0 -c pytorch -- nvidia-smi
kubelet --config=/var/lib/kubelet/config.yaml --node-labels=node.kubernetes.io/instance-type=p5.48xlarge
vllm serve meta-llama/Llama-3.1-8B --served-model-name=llama --keyboard us
vllm serve Qwen/Qwen3-235B-A22B-Instruct-2507-FP8 --tensor-parallel-size 8 --revision <hex40>
vllm serve deepseek-ai/DeepSeek-R1-Distill-Qwen-32B --kv-cache-dtype fp8_e5m2 --gpu-memory-utilization 0.92
vllm serve /data/hub/models--meta-llama--Llama-3.1-8B-Instruct/snapshots/<hex40> --max-model-len 131072
vllm serve RedHatAI/Mistral-Small-3.2-24B-Instruct-2506-quantized.w4a16 --tool-call-parser=mistral
vllm serve openai/gpt-oss-120b --speculative-config {"method":"eagle3","num_speculative_tokens":3}
vllm serve x --compilation-config={"cudagraph_mode":"FULL_AND_PIECEWISE"} --disable-log-requests
VLLM::EngineCore_DP0
llama-server -m /models/Qwen3-Coder-30B-A3B-Instruct-UD-Q4_K_XL.gguf -ngl 99 -c 32768 -fa on
llama-server -hf unsloth/DeepSeek-V3.1-Terminus-GGUF:UD-IQ2_XXS --n-cpu-moe 40
/usr/bin/ollama runner --model /usr/share/ollama/.ollama/models/blobs/sha256-<hex64> --port 41743
python -m sglang.launch_server --model-path nvidia/Llama-3_3-Nemotron-Super-49B-v1_5 --dp 2 --enable-dp-attention
trtllm-serve nvidia/DeepSeek-R1-0528-FP4-v2 --backend pytorch --max_batch_size 128
text-generation-launcher --model-id mistralai/Mixtral-8x7B-Instruct-v0.1 --num-shard 2
torchrun --nnodes=2 --nproc-per-node=8 --rdzv-id=<uuid> --rdzv-backend=c10d --rdzv-endpoint=node1:29400 train.py
torchrun --standalone --master-addr 10.0.0.1 --master_port 29500 train.py
accelerate launch --config_file=/home/ada/.cache/huggingface/accelerate/default_config.yaml train.py
deepspeed --include localhost:0,1,2,3 --master_port=29501 finetune.py --deepspeed ds_config_zero3.json
python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)
python train.py --output_dir=/scratch/run-20261128_024915-3f8k2l1m --resume_from_checkpoint checkpoint-12000
python train.py --run-id 3f8k2l1m --git-commit <hex40> --config-hash=a1b2c3d
python train.py --data /mnt/data/shard-00017-of-00512-aB3dE5fG7hI9jK1lM3nO5pQ7.parquet
python train.py --wandb-project LLMFinetuning --wandb-entity ada --hub_model_id=ada/Llama31FinetunedInstruct8B
python train.py trainer.optimizer=AdamW model.target=transformers.models.llama.LlamaForCausalLM
python train.py /tmp/tmp8x2k4qz1/config.yaml /tmp/tmp.XaB3dE9fGh
python -m ipykernel_launcher -f /home/ada/.local/share/jupyter/runtime/kernel-<uuid>.json
/home/ada/.vscode-server/bin/<hex40>/node --dns-result-order=ipv4first out/server-main.js
ray::RayTrainWorker.execute
raylet --raylet_socket_name=/tmp/ray/session_2026-11-28_02-49-15_123456_1/sockets/raylet --node-id=<hex64>
gcs_server --session-name=session_2026-11-28_02-49-15_123456_4242 --redis_port=6379
slurmstepd: [123456.batch]
srun --jobid 123456 --ntasks-per-node=8 --gpus-per-task=1 python train.py
nsys profile -t cuda,nvtx,osrt --output=/tmp/report-%p.nsys-rep python train.py
java -Xmx8g -cp /opt/app/lib/commons-lang3-3.14.0.jar org.apache.spark.executor.CoarseGrainedExecutorBackend
/nix/store/2hq3x6c1f8m9vnp4d7k5jz0b1rwa8g2s-python3-3.13.1/bin/python3 -m serve
curl https://example.org/a?b=c#d
curl https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/<hex40>/model-00001-of-00004.safetensors?download=true
curl http://127.0.0.1:8000/v1/models?limit=20&order=desc
psql postgres://db.example:5432/train?sslmode=require
git clone https://github.com/vllm-project/vllm.git --depth 1 --branch v0.11.0
pip install torch==2.13.0+cu130 --index-url https://download.pytorch.org/whl/cu130
ssh ada@gpu7.example
ssh -i /home/ada/.ssh/id_ed25519 -p 2222 ada@gpu7.example
rsync -a /data/ ada@gpu7.example:/data/
memwatchd --listen 127.0.0.1:6360
mysql --port=3306 --host db train
redis-server *:6379
postgres: ada train 10.0.0.7(51234) idle in transaction
Xorg :0 -auth /run/user/1000/gdm/Xauthority -nolisten tcp vt2
sshd: ada@pts/3
systemd-logind.service /lib/systemd/systemd --user --deserialize=42
qemu-system-x86_64 -name guest=win11 -uuid <uuid> -m 16384 -device vfio-pci,host=0000:01:00.0 -smp 8,sockets=1
ffmpeg -hwaccel cuda -i /video/in.mkv -c:v h264_nvenc -b:v 8M /video/out.mp4
blender -b /home/ada/scene.blend -E CYCLES -f 1 -- --cycles-device OPTIX
chrome --type=renderer --lang=en-US --num-raster-threads=4 --field-trial-handle=0,i,1034917234,262144
comfyui/main.py --listen 0.0.0.0 --preview-method auto --output-directory=/data/ComfyUI/output
""".strip().splitlines()


def fill(line: str, seed: int) -> tuple[str, list[str]]:
    """Return the line with random text in place of each placeholder, and these texts."""
    source, parts = random.Random(f"{seed} {line}"), []

    def put(found: re.Match[str]) -> str:
        parts.append(random_text(source, found[1]))
        return parts[-1]

    return PLACEHOLDER.sub(put, line), parts


def random_text(source: random.Random, kind: str) -> str:
    """Return random text of a kind. A password is two words and a number."""
    if kind == "word":
        return "-".join(source.choices(("horse", "Staple", "battery", "correct", "hunter"), k=2)) + "42!x"
    if kind == "uuid":
        return str(uuid.UUID(int=source.getrandbits(128), version=4))
    if kind == "digits":
        return "".join(source.choices(string.digits, k=12))
    if kind == "jwt":
        head = urlsafe_b64encode(b'{"alg":"HS256"}').decode().rstrip("=")
        return ".".join((head, *("".join(source.choices(BASE64URL, k=40)) for _ in range(2))))
    if kind.startswith("hex"):
        return "".join(source.choices(string.hexdigits[:16], k=int(kind[3:])))
    alphabet = {
        "base62": string.ascii_letters + string.digits,
        "base36": string.ascii_lowercase + string.digits,
        "base64": BASE64,
        "base64url": BASE64URL,
    }[kind]
    # Not "/" at the beginning: such a text reads as a path.
    return source.choice(string.ascii_letters) + "".join(source.choices(alphabet, k=39))
