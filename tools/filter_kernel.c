/* The arithmetic of trace_ros/baselines/{contact,invariant_filter,iekf}.py for whole logs, for the search of
 * tools/tune_filters.py alone: two microseconds a sample instead of several hundred. The search refuses to start where
 * its figures differ from the estimator's own. Names and comments are in the Python files; the error is rotation,
 * velocity, position, four feet, gyro bias, accelerometer bias, 27 numbers. */
#include <math.h>
#include <string.h>

enum { LEGS = 4, SIZE = 27, VELOCITY = 3, POSITION = 6, FEET = 9, GYRO_BIAS = 21, ACCEL_BIAS = 24 };

/* Columns of a sample. */
enum { DT, GYRO, ACCEL = 4, FOOT = 7, JACOBIAN = 19, SHANK_RATE = 55, FOOT_VELOCITY = 67, FORCE = 79, COLUMNS = 91 };

/* The numbers, in the order of filter_kernel.py. */
typedef struct {
    double gravity, weight, roll_radius, imu[3];
    double enter, leave, touchdown_dwell, liftoff_dwell, rest, rest_dwell, smoothing;
    double gyro, accel, contact, contact_vertical, slip, sinking, encoder, gyro_bias, accel_bias;
    double prior_tilt, prior_yaw, prior_velocity, prior_position, prior_gyro_bias, prior_accel_bias;
    double slip_speed, slip_patience, slip_any, rejects_slip;
} Numbers;

typedef struct {
    double rotation[9], points[2 + LEGS][3], gyro_bias[3], accel_bias[3], covariance[SIZE][SIZE];
    int standing[LEGS];
} State;

static const double ROUNDING = 1e-6;

static void cross(const double *a, const double *b, double *out) {
    double x = a[1] * b[2] - a[2] * b[1], y = a[2] * b[0] - a[0] * b[2], z = a[0] * b[1] - a[1] * b[0];
    out[0] = x, out[1] = y, out[2] = z;
}

static void apply(const double *m, const double *v, double *out) {
    double x = m[0] * v[0] + m[1] * v[1] + m[2] * v[2], y = m[3] * v[0] + m[4] * v[1] + m[5] * v[2];
    double z = m[6] * v[0] + m[7] * v[1] + m[8] * v[2];
    out[0] = x, out[1] = y, out[2] = z;
}

static void multiply(const double *a, const double *b, double *out) {
    double c[9];
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) c[3 * i + j] = a[3 * i] * b[j] + a[3 * i + 1] * b[3 + j] + a[3 * i + 2] * b[6 + j];
    memcpy(out, c, sizeof c);
}

/* Exp(phi), its integral and its double integral. */
static void rotation_integrals(const double *phi, double *turn, double *once, double *twice) {
    double s = phi[0] * phi[0] + phi[1] * phi[1] + phi[2] * phi[2], angle = sqrt(s), a, b, c, d;
    if (angle < 0.05) {
        a = 1 - s / 6 * (1 - s / 20 * (1 - s / 42));
        b = (1 - s / 12 * (1 - s / 30 * (1 - s / 56))) / 2;
        c = (1 - s / 20 * (1 - s / 42 * (1 - s / 72))) / 6;
        d = (1 - s / 30 * (1 - s / 56 * (1 - s / 90))) / 24;
    } else {
        a = sin(angle) / angle, b = (1 - cos(angle)) / s, c = (1 - a) / s, d = (0.5 - b) / s;
    }
    double hat[9] = {0, -phi[2], phi[1], phi[2], 0, -phi[0], -phi[1], phi[0], 0}, square[9];
    multiply(hat, hat, square);
    for (int i = 0; i < 9; i++) {
        double eye = i % 4 == 0;
        turn[i] = eye + a * hat[i] + b * square[i];
        once[i] = eye + b * hat[i] + c * square[i];
        twice[i] = eye / 2 + c * hat[i] + d * square[i];
    }
}


/* (3,) m from the IMU, body frame. */
static void foot_from_imu(const Numbers *n, const double *sample, int leg, double *out) {
    for (int i = 0; i < 3; i++) out[i] = sample[FOOT + 3 * leg + i] - n->imu[i];
}

/* (3, 3) m^2, world frame. */
static void encoder_noise(const State *state, const Numbers *n, const double *sample, int leg, double *out) {
    double turned[9];
    multiply(state->rotation, sample + JACOBIAN + 9 * leg, turned);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            const double *a = turned + 3 * i, *b = turned + 3 * j;
            out[3 * i + j] = n->encoder * (a[0] * b[0] + a[1] * b[1] + a[2] * b[2]);
        }
}

/* One row or column of the covariance through the error's transition. */
static void move_error(const State *state, double gravity, double dt, double *e) {
    double by_gyro[3], by_accel[3], part[3], velocity[3] = {e[3], e[4], e[5]};
    double pull[3] = {gravity * e[1], -gravity * e[0], 0};
    apply(state->rotation, e + GYRO_BIAS, by_gyro);
    apply(state->rotation, e + ACCEL_BIAS, by_accel);
    double biased_pull[3] = {gravity * by_gyro[1], -gravity * by_gyro[0], 0};
    for (int point = 0; point < 2 + LEGS; point++) {
        cross(state->points[point], by_gyro, part);
        for (int i = 0; i < 3; i++) e[3 + 3 * point + i] -= dt * part[i];
    }
    cross(state->points[0], by_gyro, part);
    for (int i = 0; i < 3; i++) {
        e[VELOCITY + i] += dt * pull[i] - dt * dt / 2 * biased_pull[i] - dt * by_accel[i];
        e[POSITION + i] += dt * velocity[i] + dt * dt / 2 * (pull[i] - part[i] - by_accel[i]) -
                           dt * dt * dt / 6 * biased_pull[i];
        e[i] -= dt * by_gyro[i];
    }
}

static void propagate(State *state, const Numbers *n, const double *reading, double dt, double foot_noise[LEGS][3],
                      double foot_velocity[LEGS][3]) {
    double column[GYRO_BIAS][3] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
    for (int point = 0; point < 2 + LEGS; point++) {
        const double *at = state->points[point];
        double hat[3][3] = {{0, -at[2], at[1]}, {at[2], 0, -at[0]}, {-at[1], at[0], 0}};
        memcpy(column[3 + 3 * point], hat, sizeof hat);
    }
    double(*p)[SIZE] = state->covariance, gyro = n->gyro * dt;
    for (int i = 0; i < GYRO_BIAS; i++)
        for (int j = 0; j < GYRO_BIAS; j++)
            p[i][j] += gyro * (column[i][0] * column[j][0] + column[i][1] * column[j][1] + column[i][2] * column[j][2]);
    for (int i = 0; i < 3; i++) {
        p[VELOCITY + i][VELOCITY + i] += n->accel * dt;
        p[GYRO_BIAS + i][GYRO_BIAS + i] += n->gyro_bias * dt;
        p[ACCEL_BIAS + i][ACCEL_BIAS + i] += n->accel_bias * dt;
        for (int leg = 0; leg < LEGS; leg++)
            if (state->standing[leg]) p[FEET + 3 * leg + i][FEET + 3 * leg + i] += foot_noise[leg][i] * dt;
    }
    double e[SIZE];
    for (int j = 0; j < SIZE; j++) {
        for (int i = 0; i < SIZE; i++) e[i] = p[i][j];
        move_error(state, n->gravity, dt, e);
        for (int i = 0; i < SIZE; i++) p[i][j] = e[i];
    }
    for (int i = 0; i < SIZE; i++) move_error(state, n->gravity, dt, p[i]);

    double phi[3], force[3], turn[9], once[9], twice[9], first[3], second[3];
    for (int i = 0; i < 3; i++) {
        phi[i] = (reading[GYRO + i] - state->gyro_bias[i]) * dt;
        force[i] = reading[ACCEL + i] - state->accel_bias[i];
    }
    rotation_integrals(phi, turn, once, twice);
    apply(once, force, first), apply(state->rotation, first, first);
    apply(twice, force, second), apply(state->rotation, second, second);
    first[2] -= n->gravity, second[2] -= n->gravity / 2;
    for (int i = 0; i < 3; i++) {
        state->points[1][i] += state->points[0][i] * dt + second[i] * dt * dt;
        state->points[0][i] += first[i] * dt;
        for (int leg = 0; leg < LEGS; leg++)
            if (state->standing[leg]) state->points[2 + leg][i] += foot_velocity[leg][i] * dt;
    }
    multiply(state->rotation, turn, state->rotation);
}

static void move(State *state, const double *error) {
    double turn[9], once[9], twice[9], part[3], square[9];
    rotation_integrals(error, turn, once, twice);
    for (int point = 0; point < 2 + LEGS; point++) {
        apply(turn, state->points[point], state->points[point]);
        apply(once, error + 3 + 3 * point, part);
        for (int i = 0; i < 3; i++) state->points[point][i] += part[i];
    }
    multiply(turn, state->rotation, state->rotation);
    const double *r = state->rotation;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++)
            square[3 * i + j] = 1.5 * (i == j) - 0.5 * (r[i] * r[j] + r[3 + i] * r[3 + j] + r[6 + i] * r[6 + j]);
    multiply(state->rotation, square, state->rotation);
    for (int i = 0; i < 3; i++) {
        state->gyro_bias[i] += error[GYRO_BIAS + i];
        state->accel_bias[i] += error[ACCEL_BIAS + i];
    }
}

static void drop(State *state, const int *contact) {
    for (int leg = 0; leg < LEGS; leg++) {
        if (!state->standing[leg] || contact[leg]) continue;
        state->standing[leg] = 0;
        memset(state->points[2 + leg], 0, sizeof state->points[0]);
        for (int i = FEET + 3 * leg; i < FEET + 3 * leg + 3; i++) {
            for (int j = 0; j < SIZE; j++) state->covariance[i][j] = state->covariance[j][i] = 0;
            state->covariance[i][i] = 1;
        }
    }
}

static void correct_feet(State *state, const Numbers *n, const double *sample, const double *load) {
    int legs[LEGS], count = 0;
    for (int leg = 0; leg < LEGS; leg++)
        if (state->standing[leg]) legs[count++] = leg;
    if (!count) return;
    int m = 3 * count;
    double(*p)[SIZE] = state->covariance, crossed[SIZE][12], s[12][12], residual[12], foot[3], noise[9];
    for (int k = 0; k < count; k++)
        for (int i = 0; i < SIZE; i++)
            for (int j = 0; j < 3; j++) crossed[i][3 * k + j] = p[i][FEET + 3 * legs[k] + j] - p[i][POSITION + j];
    for (int k = 0; k < count; k++) {
        int leg = legs[k];
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < m; j++) s[3 * k + i][j] = crossed[FEET + 3 * leg + i][j] - crossed[POSITION + i][j];
        encoder_noise(state, n, sample, leg, noise);
        noise[8] += n->sinking * load[leg] * n->sinking * load[leg];
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++) s[3 * k + i][3 * k + j] += noise[3 * i + j];
        foot_from_imu(n, sample, leg, foot);
        apply(state->rotation, foot, foot);
        for (int i = 0; i < 3; i++) residual[3 * k + i] = foot[i] + state->points[1][i] - state->points[2 + leg][i];
    }
    /* Cholesky, s = l l'. */
    for (int j = 0; j < m; j++)
        for (int i = j; i < m; i++) {
            double sum = s[i][j];
            for (int k = 0; k < j; k++) sum -= s[i][k] * s[j][k];
            s[i][j] = i == j ? sqrt(sum) : sum / s[j][j];
        }
    /* With w = crossed l^-T: the step is w l^-1 residual, and the covariance falls by w w'. */
    for (int j = 0; j < m; j++) {
        for (int k = 0; k < j; k++) {
            residual[j] -= s[j][k] * residual[k];
            for (int i = 0; i < SIZE; i++) crossed[i][j] -= s[j][k] * crossed[i][k];
        }
        residual[j] /= s[j][j];
        for (int i = 0; i < SIZE; i++) crossed[i][j] /= s[j][j];
    }
    double error[SIZE];
    for (int i = 0; i < SIZE; i++) {
        error[i] = 0;
        for (int k = 0; k < m; k++) error[i] += crossed[i][k] * residual[k];
        for (int j = 0; j <= i; j++) {
            double fall = 0;
            for (int k = 0; k < m; k++) fall += crossed[i][k] * crossed[j][k];
            p[i][j] = p[j][i] = (p[i][j] + p[j][i]) / 2 - fall;
        }
    }
    move(state, error);
}

static void add(State *state, const Numbers *n, const int *contact, const double *sample) {
    double(*p)[SIZE] = state->covariance, foot[3], noise[9];
    for (int leg = 0; leg < LEGS; leg++) {
        if (state->standing[leg] || !contact[leg]) continue;
        int at = FEET + 3 * leg;
        foot_from_imu(n, sample, leg, foot);
        apply(state->rotation, foot, foot);
        encoder_noise(state, n, sample, leg, noise);
        for (int i = 0; i < 3; i++) {
            state->points[2 + leg][i] = state->points[1][i] + foot[i];
            memcpy(p[at + i], p[POSITION + i], sizeof p[0]);
        }
        for (int j = 0; j < SIZE; j++)
            for (int i = 0; i < 3; i++) p[j][at + i] = p[j][POSITION + i];
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++) p[at + i][at + j] = p[POSITION + i][POSITION + j] + noise[3 * i + j];
        state->standing[leg] = 1;
    }
}

static void begin(State *state, const Numbers *n, const double *rotation, const int *contact, const double *sample) {
    memset(state, 0, sizeof *state);
    memcpy(state->rotation, rotation, sizeof state->rotation);
    apply(rotation, n->imu, state->points[1]);
    for (int i = 0; i < SIZE; i++) state->covariance[i][i] = 1;
    double(*p)[SIZE] = state->covariance, *at = state->points[1];
    double hat[3][3] = {{0, -at[2], at[1]}, {at[2], 0, -at[0]}, {-at[1], at[0], 0}};
    double turn[3] = {n->prior_tilt * n->prior_tilt, n->prior_tilt * n->prior_tilt, n->prior_yaw * n->prior_yaw};
    for (int i = 0; i < 3; i++) {
        p[i][i] = turn[i];
        p[VELOCITY + i][VELOCITY + i] = n->prior_velocity * n->prior_velocity;
        p[GYRO_BIAS + i][GYRO_BIAS + i] = n->prior_gyro_bias * n->prior_gyro_bias;
        p[ACCEL_BIAS + i][ACCEL_BIAS + i] = n->prior_accel_bias * n->prior_accel_bias;
        p[POSITION + i][POSITION + i] = n->prior_position * n->prior_position;
        for (int j = 0; j < 3; j++) p[POSITION + i][j] = p[j][POSITION + i] = hat[i][j] * turn[j];
    }
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++)
            for (int k = 0; k < 3; k++) p[POSITION + i][POSITION + j] += hat[i][k] * turn[k] * hat[j][k];
    add(state, n, contact, sample);
}

int numbers(void) { return sizeof(Numbers) / sizeof(double); }

int columns(void) { return COLUMNS; }

/* Args: (count, COLUMNS) samples; numbers; (9,) rotation at the sample `first`; every how many samples to write.
 * Out: (..., 15) rows of position, rotation and body velocity of the base. Returns the number of rows. */
int run(const double *samples, int count, const double *raw, const double *start, int first, int every, double *out) {
    const Numbers *n = (const Numbers *)raw;
    State state;
    int contact[LEGS] = {0}, slipping[LEGS] = {0}, rows = 0;
    double pending[LEGS] = {0}, resting[LEGS] = {0}, force[3 * LEGS] = {0}, load[LEGS], rolling[LEGS][3] = {{0}};
    double up[3] = {0, 0, 1}, without_hold = 0;
    for (int t = 0; t < count; t++) {
        const double *sample = samples + (long)t * COLUMNS, dt = sample[DT];
        double weight = t == 0 || n->smoothing == 0 ? 1 : 1 - exp(-dt / n->smoothing);
        for (int i = 0; i < 3 * LEGS; i++) force[i] += weight * (sample[FORCE + i] - force[i]);
        for (int leg = 0; leg < LEGS; leg++) {
            const double *f = force + 3 * leg, part = (f[0] * up[0] + f[1] * up[1] + f[2] * up[2]) / n->weight;
            resting[leg] = part > n->rest ? resting[leg] + dt : 0;
            int enters = part > n->enter || resting[leg] - dt >= n->rest_dwell - ROUNDING;
            int changing = contact[leg] ? part < n->leave : enters;
            pending[leg] = changing ? pending[leg] + dt : 0;
            if (changing && pending[leg] - dt >= (contact[leg] ? n->liftoff_dwell : n->touchdown_dwell) - ROUNDING)
                pending[leg] = 0, contact[leg] = !contact[leg];
            load[leg] = part > 0 ? part : 0;
        }
        if (t < first) continue;
        if (t == first) {
            begin(&state, n, start, contact, sample);
        } else {
            double noise[LEGS][3];
            for (int leg = 0; leg < LEGS; leg++) {
                noise[leg][0] = noise[leg][1] = slipping[leg] ? n->slip : n->contact;
                noise[leg][2] = slipping[leg] && n->slip_any > 0 ? n->slip : n->contact_vertical;
            }
            propagate(&state, n, sample - COLUMNS, dt, noise, rolling);
            drop(&state, contact);
            correct_feet(&state, n, sample, load);
            add(&state, n, contact, sample);
        }
        int stands = 0, held = 0;
        double rate[3], turning[3], foot[3], speed[3], shank[3], radius[3] = {0, 0, n->roll_radius};
        for (int i = 0; i < 3; i++) rate[i] = sample[GYRO + i] - state.gyro_bias[i];
        for (int leg = 0; leg < LEGS; leg++) {
            for (int i = 0; i < 3; i++) shank[i] = sample[GYRO + i] + sample[SHANK_RATE + 3 * leg + i];
            apply(state.rotation, shank, shank);
            cross(shank, radius, rolling[leg]);
            foot_from_imu(n, sample, leg, foot);
            cross(rate, foot, turning);
            for (int i = 0; i < 3; i++) turning[i] += sample[FOOT_VELOCITY + 3 * leg + i];
            apply(state.rotation, turning, speed);
            double square = 0;
            for (int i = 0; i < (n->slip_any > 0 ? 3 : 2); i++) {
                speed[i] += state.points[0][i] - rolling[leg][i];
                square += speed[i] * speed[i];
            }
            slipping[leg] = n->rejects_slip > 0 && state.standing[leg] && square > n->slip_speed * n->slip_speed;
            stands |= state.standing[leg];
            held |= state.standing[leg] && !slipping[leg];
        }
        if (held) without_hold = 0;
        else if (stands && t > first) without_hold += dt;
        if (without_hold > n->slip_patience) memset(slipping, 0, sizeof slipping);
        memcpy(up, state.rotation + 6, sizeof up);
        if ((t - first) % every == 0) {
            double *row = out + 15 * rows++, arm[3], lever[3];
            const double *r = state.rotation, *v = state.points[0];
            apply(r, n->imu, arm);
            cross(rate, n->imu, lever);
            memcpy(row + 3, r, 9 * sizeof(double));
            for (int i = 0; i < 3; i++) {
                row[i] = state.points[1][i] - arm[i];
                row[12 + i] = r[i] * v[0] + r[3 + i] * v[1] + r[6 + i] * v[2] - lever[i];
            }
        }
    }
    return rows;
}
